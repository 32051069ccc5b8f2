"""The states of a training and of its workers, as the coordinator sees them.

A worker reports its state: the number of steps that it has made, its last view, and whether it has
the state of the training. That message is a `StateReport`.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from terngrad.cluster.addresses import name_of
from terngrad.cluster.progress import OperationProgress, StallDetector
from terngrad.coordination import groups
from terngrad.service.messages import StateReport, View

_State = TypeVar("_State", bound=enum.Enum)
_Event = TypeVar("_Event", bound=enum.Enum)


class Status(enum.Enum):
    """The state of a worker."""

    DISCONNECTED = "has never connected, or was lost and may come back"
    CONNECTED = "connected, and has not reported its state, or must wait before it may join"
    WAITING = "has reported its state, and waits for a view"
    TRAINING = "a member of the last view"
    DISMISSED = "was informed that the training is done, and must leave"
    HUNG = "was abandoned, and its streams were cut"
    RECONNECTED = "was abandoned, and is connected again; no view waits for its report"
    FINISHED = "has reported that it is done, and left"


class WorkerEvent(enum.Enum):
    """An event of a worker."""

    CONNECT = "its stream begins"
    DISCONNECT = "its stream ends"
    REPORT = "it reports its state"
    INSTALL = "it is a member of the new view"
    DISMISS = "it is informed that the training is done"
    ABANDON = "it hangs, and the others continue without it"
    FINISH = "it reports that it is done"


class Phase(enum.Enum):
    """The phase of a training."""

    STARTING = "no worker has reported its state"
    FORMING = "the workers report their states, for a new view"
    STEPPING = "the members of the view make steps"
    CLOSING = "some workers are done, and the others were informed"
    ENDED = "there is an outcome"


class TrainingEvent(enum.Enum):
    """An event of a training."""

    ASK = "a worker wants to join, or a member is lost: all members are asked for their states"
    INSTALL = "there is a new view"
    DISMISS = "too few workers are left for a view, because others are done"
    END = "it is done, or cannot continue"


# A cell is the state after an event; in an empty cell the event does not happen in that state.
_WORKERS = """
STATUS       | CONNECT     | DISCONNECT   | REPORT  | INSTALL  | DISMISS   | ABANDON | FINISH
DISCONNECTED | CONNECTED   |              |         |          |           |         |
CONNECTED    |             | DISCONNECTED | WAITING |          |           | HUNG    | FINISHED
WAITING      |             | DISCONNECTED | WAITING | TRAINING | DISMISSED |         | FINISHED
TRAINING     |             | DISCONNECTED | WAITING |          |           | HUNG    | FINISHED
DISMISSED    |             | DISCONNECTED | WAITING |          |           | HUNG    | FINISHED
HUNG         | RECONNECTED |              |         |          |           |         |
RECONNECTED  |             | HUNG         | WAITING |          |           |         | FINISHED
FINISHED     | CONNECTED   |              |         |          |           |         |
"""
_TRAINING = """
PHASE    | ASK     | INSTALL  | DISMISS | END
STARTING | FORMING |          |         | ENDED
FORMING  |         | STEPPING | CLOSING | ENDED
STEPPING | FORMING |          |         | ENDED
CLOSING  | FORMING |          |         | ENDED
ENDED    |         |          |         |
"""


def _read(
    table: str, states: type[_State], events: type[_Event]
) -> Mapping[tuple[_State, _Event], _State]:
    lines = table.strip().splitlines()
    (_, *columns), *rows = ([cell.strip() for cell in line.split("|")] for line in lines)
    return {
        (states[before], events[event]): states[after]
        for before, *cells in rows
        for event, after in zip(columns, cells, strict=True)
        if after
    }


STATUS_AFTER = _read(_WORKERS, Status, WorkerEvent)
PHASE_AFTER = _read(_TRAINING, Phase, TrainingEvent)
CONNECTED = frozenset(Status) - {Status.DISCONNECTED, Status.HUNG, Status.FINISHED}
JOINED = frozenset({Status.WAITING, Status.TRAINING, Status.DISMISSED})


@dataclasses.dataclass(frozen=True)
class Rules:
    """Which workers make a step."""

    needed: int  # number of workers that make a step; the first ones if there are more
    elastic: bool  # whether to continue with fewer workers when lost ones do not come back
    timeout_secs: float  # longest time for which a worker may be lost
    # The same once there was a view, if others go on; None = timeout_secs.
    return_secs: float | None = None
    min_size: int = 1  # an elastic training waits while fewer workers are there
    wait_secs: float = math.inf  # longest wait for these, or for a majority; then it ends
    # Whether each worker has a ps of its own, ps i being that of worker i, and another ps may
    # coordinate when the one that did is lost.
    coordinator_moves: bool = False
    # Whether workers with a ps of their own have no mesh, because native kernels are missing.
    lacks_kernels: bool = False

    def __str__(self) -> str:
        """As the flags that must be the same on all processes."""
        waits = f", min_size={self.min_size}" if self.min_size > 1 else ""
        return (
            f"num_replicas_to_aggregate={self.needed}, elastic={self.elastic}, "
            f"worker_timeout_secs={self.timeout_secs:g}{waits}"
            f"{', no native kernels' if self.lacks_kernels else ''}"
        )


@dataclasses.dataclass
class Session:
    """What a worker has done since its stream began."""

    has_reported: bool = False  # its state
    pending: StateReport | None = None  # that report, while it must wait before it may join
    chosen_for: int = -1  # last step to which it was chosen to contribute; -1 = none
    has_contributed: bool = False  # whether such a step was made
    is_active: bool = False  # it was ready for a step of a view, or compared something in one
    lost_ps: frozenset[int] = frozenset()  # ps that it does without
    ended_ps: frozenset[int] = frozenset()  # ps at whose addresses nobody listens
    ended_in_view: frozenset[int] = frozenset()  # those of them that it reached until they ended
    leaves: bool = False  # it has reported that it ends and the others continue
    # The operations with the other workers that it has begun.
    operations: OperationProgress = dataclasses.field(default_factory=OperationProgress)


@dataclasses.dataclass
class WorkerRecord:
    """What the coordinator knows about a worker."""

    status: Status = Status.DISCONNECTED
    report: StateReport | None = None  # of its state, while the status is WAITING
    has_reported: bool = False  # in any session; only then its losses are logged
    is_new: bool = False  # it is a receiver of the view, and has made no step since
    lacks_state: bool = False  # the same, and it has not confirmed that it has the state
    session: Session = dataclasses.field(default_factory=Session)
    idle_sessions: int = 0  # its last sessions in which it reported and contributed to no step
    joins_after: float = 0.0  # time before which it joins only if it is needed
    lost_at: float | None = None  # None while it is connected or done, and before any connects
    loss: str = ""  # how it was lost; "" = it is not lost

    def change(self, event: WorkerEvent, report: StateReport | None = None) -> None:
        """Applies an event; REPORT has a report."""
        self.status = STATUS_AFTER[self.status, event]
        self.report = report


class StepSelection:
    """Selects for each step the members that are ready first, if it needs fewer than all."""

    def __init__(self, members: Iterable[int], needed: int, steps: int) -> None:
        """Starts after `steps` steps; `needed` of the members make a step."""
        self._needed, self._next = needed, steps
        self._ready: dict[int, list[int]] = collections.defaultdict(list)
        self._required: set[int] = set()
        self._members = frozenset(members)
        self._counted: dict[int, int] = {}  # last step counted in `dropped`, by worker
        self.active: set[int] = set()  # a step may wait for them: were ready once, or are required
        self.dropped: collections.Counter[int] = collections.Counter()  # late gradients by worker

    def require(self, worker: int) -> None:
        """Makes the next steps wait for this worker until it takes part in one."""
        if worker in self._members:
            self.active.add(worker)
            self._required.add(worker)

    def ready(self, worker: int, step: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Notes that a member has the gradients of a step; yields steps and who makes them."""
        if worker not in self._members or step > self._next + 1:
            return
        self.active.add(worker)
        if step < self._next:
            if step > self._counted.get(worker, -1):  # else the worker reported it twice
                self._counted[worker] = step
                self.dropped[worker] += 1
            return
        if worker not in self._ready[step]:
            self._ready[step].append(worker)
        while (chosen := self._choose(self._ready[self._next])) is not None:
            yield self._next, chosen
            del self._ready[self._next]
            self._required -= set(chosen)
            self._next += 1

    def _choose(self, ready: list[int]) -> tuple[int, ...] | None:
        """Chooses from the ready workers, the earliest first; None if it is too early."""
        if len(ready) < self._needed or not self._required.issubset(ready):
            return None
        first = sorted(ready, key=lambda worker: worker not in self._required)  # stable
        return tuple(sorted(first[: max(self._needed, len(self._required))]))


class CoordinatorState:
    """What all decisions depend on; only `Coordinator` changes it. Times are seconds of a clock."""

    def __init__(
        self,
        hosts: Sequence[str],
        rules: Rules,
        clock: Callable[[], float],
        number: int,
        ps: int = 0,
    ) -> None:
        """Starts without connected workers; all views get numbers above `number`."""
        self.rules, self.clock, self.number, self.ps = rules, clock, number, ps
        self.records = [WorkerRecord() for _ in hosts]
        self._were_all_lost = False  # at the same time, in this view
        self.phase, self.since = Phase.STARTING, clock()  # and when the phase began
        self.began = self.since
        self.view: View | None = None  # the last one of this coordinator, number `number`
        self.members: frozenset[int] = frozenset()  # of that view
        self.selection: StepSelection | None = None  # None = all members make each step
        self.stalls = StallDetector(rules.timeout_secs)  # progress of the members
        self.stalled_at: int | None = None  # batches when they last made no step for very long
        self.some_are_done = False  # a worker has reported that it is done
        self.outcome: str | None = None  # "" = the training is done, else why it failed
        self._hosts, self._has_begun = hosts, False
        self._all = frozenset(range(len(hosts)))
        self._dropped_before: collections.Counter[int] = collections.Counter()  # in earlier views

    def with_status(self, statuses: Iterable[Status]) -> set[int]:
        """Returns the workers with one of these statuses."""
        return {i for i, record in enumerate(self.records) if record.status in statuses}

    @property
    def connected(self) -> set[int]:
        """Workers with an open stream."""
        return self.with_status(CONNECTED)

    @property
    def responsive(self) -> set[int]:
        """Workers with an open stream that are not known to hang."""
        return self.with_status(CONNECTED - {Status.RECONNECTED})

    @property
    def lost(self) -> set[int]:
        """Lost workers and, after the first connection, workers that have never connected."""
        return {i for i, record in enumerate(self.records) if record.lost_at is not None}

    @property
    def limit_secs(self) -> float:
        """Longest time for which a worker may be lost.

        Where no other worker has the state of the training, or all were lost at once, and no other
        ps can coordinate the lost worker, it may be lost for longer.
        """
        rules = self.rules
        goes_on = rules.coordinator_moves or (
            not self._were_all_lost and any(map(self._has_state, self.responsive & self.members))
        )
        is_short = self.view is not None and rules.return_secs is not None and goes_on
        return rules.return_secs if is_short else rules.timeout_secs

    def _has_state(self, member: int) -> bool:
        record = self.records[member]
        if record.report is not None:
            return record.report.is_live
        return record.status is Status.TRAINING and not record.lacks_state

    @property
    def gone(self) -> set[int]:
        """Workers that have been lost for too long."""
        now, limit, idle = self.clock(), self.limit_secs, self.idle
        secs_of = {i: self.rules.timeout_secs if i in idle else limit for i in self.lost}
        return {i for i, secs in secs_of.items() if now - self.records[i].lost_at >= secs}

    @property
    def returning(self) -> set[int]:
        """Lost workers that may still come back."""
        return self.lost - self.gone

    @property
    def expected(self) -> set[int]:
        """Workers that have never connected."""
        return {i for i in self.with_status({Status.DISCONNECTED}) if not self.records[i].loss}

    @property
    def reports(self) -> dict[int, StateReport]:
        """Reports of the workers that wait for a view."""
        return {i: each.report for i, each in enumerate(self.records) if each.report is not None}

    @property
    def live(self) -> list[StateReport]:
        """Reports of the workers that have the state of the training."""
        return [report for report in self.reports.values() if report.is_live]

    @property
    def idle(self) -> set[int]:
        """Members that have made no step yet and that the others need not wait for."""
        if self.selection is None or self.view.is_first:
            return set()
        new = {worker for worker in self.members if self.records[worker].is_new}
        idle = {w for w in new if not self.records[w].session.has_contributed}
        others = self.responsive & self.members - idle
        return idle if len(others) >= self.rules.needed else set()

    @property
    def dropped(self) -> collections.Counter[int]:
        """Number of late gradients by worker."""
        before = self._dropped_before
        return before + self.selection.dropped if self.selection else before

    def unused_ps_of(self, members: frozenset[int]) -> frozenset[int]:
        """Returns the ps that a view of these members does without.

        Where each worker has a ps of its own, the members use only theirs. A loss or a return is
        then one event, not one of the worker and another one of its ps.
        """
        lost = self._lost_ps(self.connected & members)
        goes_on = self.rules.coordinator_moves and self.rules.elastic
        unused = lost | (self._all - members) if goes_on else lost
        # Some ps must add, even if the only member has lost its own.
        return unused if unused < self._all else unused - {self.ps}

    @property
    def unused_ps(self) -> frozenset[int]:
        """The ps that the next view does not use, as far as is known now."""
        return self.unused_ps_of(self.members) if self.view else self._lost_ps(self.connected)

    def _lost_ps(self, workers: Iterable[int]) -> frozenset[int]:
        return frozenset().union(*(self.records[worker].session.lost_ps for worker in workers))

    @property
    def last_view(self) -> StateReport | None:
        """The newest view as a worker would report it, of this coordinator or another one.

        None before the first view of a training.
        """
        known = [report for report in self.live if report.view]
        if self.view is not None:
            view = self.view
            known.append(
                StateReport(view=view.number, members=view.members, coordinator=view.coordinator)
            )
        return max(known, key=lambda report: report.view, default=None)

    @property
    def ended(self) -> set[int]:
        """Workers whose processes of the last view have ended, where ps i is that of worker i.

        Nobody listens where their ps were, or they have started again, or they were done.
        """
        reported = [self.records[worker].session.ended_ps for worker in self.connected]
        restarted = {worker for worker, report in self.reports.items() if not report.is_live}
        return self.ended_in_view.union(restarted, *reported) - self._present

    @property
    def ended_in_view(self) -> set[int]:
        """Those of `ended` that were reached until they ended, so they were in no later view."""
        reported = [self.records[worker].session.ended_in_view for worker in self.connected]
        return self.with_status({Status.FINISHED}).union(*reported) - self._present

    @property
    def _present(self) -> set[int]:
        return {worker for worker, report in self.reports.items() if report.is_live}

    def begin(self) -> None:
        """Notes that a worker has connected: from now on, absent ones count as lost."""
        if not self._has_begun:
            self._has_begun = True
            for record in self.records:
                record.lost_at = self.clock()

    def connect(self, worker: int) -> bool:
        """Notes that a worker's stream has begun; returns whether the worker was lost before."""
        self.begin()
        record = self.records[worker]
        was_lost = bool(record.loss)
        if record.status not in CONNECTED:
            record.change(WorkerEvent.CONNECT)
            record.session = Session()
        record.lost_at, record.loss = None, ""
        self._were_all_lost &= not self.members <= self.connected
        return was_lost

    def lose(
        self, worker: int, loss: str, *, hangs: bool = False, silent_secs: float = 0.0
    ) -> None:
        """Notes that a worker is lost: it may come back in time, but not if it hangs."""
        record = self.records[worker]
        record.change(WorkerEvent.ABANDON if hangs else WorkerEvent.DISCONNECT)
        cannot_return = hangs or record.session.leaves
        if self.rules.return_secs is not None:  # it may open another stream in that time
            silent_secs = 0.0
        record.loss = loss
        record.lost_at = -math.inf if cannot_return else self.clock() - silent_secs
        self._were_all_lost |= not self.connected

    def install(self, view: View) -> None:
        """Installs the next view; all workers with a report become its members."""
        receivers = groups.unpack(view.receivers)
        self._dropped_before = self.dropped
        self.view, self.number, self.members = view, view.number, frozenset(self.reports)
        self.selection, self._were_all_lost = None, False
        if view.needed < len(self.members):
            self.selection = StepSelection(self.members, view.needed, view.steps)
        self.stalls = StallDetector(self.rules.timeout_secs)
        for worker, record in enumerate(self.records):
            record.is_new = record.lacks_state = worker in receivers
            if worker in self.members:
                record.change(WorkerEvent.INSTALL)
        self.move(TrainingEvent.INSTALL)

    def move(self, event: TrainingEvent) -> None:
        """Applies an event to the phase."""
        self.phase, self.since = PHASE_AFTER[self.phase, event], self.clock()

    def name(self, worker: int) -> str:
        """Returns the name of a worker for messages."""
        return name_of(worker, self._hosts)

    def names(self, workers: Iterable[int]) -> str:
        """Returns the names of workers for messages."""
        return ", ".join(map(self.name, sorted(workers)))

    def explain(self, workers: Iterable[int]) -> str:
        """Says in a message why workers are not there."""
        limit, found = f"within {self.limit_secs:g} s", []
        for worker in sorted(workers):
            loss = self.records[worker].loss
            why = f"{loss}, and did not come back {limit}" if loss else f"did not join {limit}"
            found.append(f"{self.name(worker)} {why}")
        return ", ".join(found)
