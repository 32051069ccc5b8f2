"""Which workers train together: ps 0 decides it, and decides anew when one comes or goes.

A worker that is lost may come back within the time-out: its place is kept, and where all workers
make a step the step waits. Later it is missing for good: the training ends with its name, or goes
on without it, where that is wanted or enough others are there.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from terngrad.cluster.pulse import HOPELESS, Standstill
from terngrad.exchange.parameter_server import groups
from terngrad.exchange.parameter_server.coordination.roster import Roster
from terngrad.exchange.parameter_server.coordination.selection import Selection
from terngrad.exchange.parameter_server.coordination.values import Values
from terngrad.exchange.parameter_server.coordination.views import CHIEF, in_words, next_view
from terngrad.service.messages import Order, Report, Standing, View

_GRACE_SECS = 5.0  # for workers to find a ps that was started again
_MOST_AHEAD = 10**11  # numbers of views, which are milliseconds: some years
_MOST_STEPS = 1 << 62

Send = Callable[[int, Order], None]


@dataclasses.dataclass(frozen=True)
class Rules:
    """Who makes a step.

    Attributes:
      needed: workers whose gradients make a step; of more, the first ones.
      elastic: go on with fewer when the others do not come back in time.
      timeout_secs: for which a worker may be away.
    """

    needed: int
    elastic: bool
    timeout_secs: float

    def __str__(self) -> str:
        """As the flags say them that ps and workers must have in common."""
        return (
            f"num_replicas_to_aggregate={self.needed}, elastic={self.elastic}, "
            f"worker_timeout_secs={self.timeout_secs:g}"
        )


class Coordinator:
    """The workers of a training, as ps 0 knows them; any thread may call.

    Attributes:
      outcome: None while the training goes on, "" when it is done, else why it ended.
    """

    def __init__(
        self,
        worker_hosts: Sequence[str],
        rules: Rules,
        send: Send,
        drop: Callable[[int], None] = lambda worker: None,
        tell: Callable[[str], None] = print,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nobody has come yet.

        Args:
          worker_hosts: of all workers.
          rules: see there.
          send: gives a worker an order; must not wait.
          drop: ends a worker's streams; must not wait.
          tell: takes lines of the log.
          clock: seconds.
        """
        self.outcome: str | None = None
        self._saver: int | None = None  # of the steps made so far, at the end
        self._count = len(worker_hosts)
        self._roster = Roster(worker_hosts, rules.timeout_secs, clock)
        self._rules = rules
        self._send, self._drop, self._tell, self._clock = send, drop, tell, clock
        self._lock = threading.RLock()
        self._finished: set[int] = set()
        self._joined: set[int] = set()  # who is in a view, or waits for one
        self._trained: set[int] = set()  # who was ever in a view, or waited for one
        self._hung: set[int] = set()  # whom no view waits for until it says where it stands
        self._standings: dict[int, Standing] = {}
        self._lacking: set[int] = set()  # who may not have the view's state yet
        self._values = Values(send)
        self._view: View | None = None
        self._members: tuple[int, ...] = ()
        self._selection: Selection | None = None
        self._dropped: collections.Counter[int] = collections.Counter()  # in earlier views
        self._standstill = Standstill(rules.timeout_secs)
        self._forming_since: float | None = None
        self._began = clock()
        # Grows over restarts, too, so that what was pushed before one is never taken for new.
        self._number = int(1000 * time.time())

    @property
    def dropped(self) -> collections.Counter[int]:
        """Gradients that came too late for their step, by worker."""
        with self._lock:
            return self._dropped + self._selection.dropped if self._selection else self._dropped

    def come(self, worker: int) -> None:
        """A worker's stream has begun."""
        with self._lock:
            was_lost = self._roster.come(worker)
            if self.outcome is not None:
                self._send(worker, self._last_order())
            elif was_lost and worker in self._trained - self._hung:
                self._tell(f"{self._roster.name(worker)} came back.")

    def leave(self, worker: int, why: str) -> None:
        """A worker's stream has ended."""
        with self._lock:
            if worker not in self._present:
                return
            self._lose(worker, why)
            if not self._present:
                self._values.clear()
            if self.outcome is None:
                if worker in self._trained:  # who only connects, and goes, fills no log
                    self._tell(f"{self._roster.name(worker)} {why}.")
                if self._spare and worker in self._members and self._forming_since is None:
                    self._reform()
            self._go_on()

    def hear(self, worker: int, report: Report) -> None:
        """Takes what a worker tells, other than its state.

        Raises:
          ValueError: says what cannot be.
        """
        with self._lock:
            if self.outcome is not None or worker not in self._present:
                return
            what = report.WhichOneof("what")
            if what == "standing":
                self._stand(worker, report.standing)
            elif what == "value":
                if report.value.round <= self._number:  # else of a view that cannot be
                    self._values.give(worker, report.value)
            elif what == "ready":
                self._note_ready(worker, report.ready)
            elif what == "insists" and self._selection and worker in self._joined:
                self._selection.insist(worker)
            elif what == "progress" and (self._view is None or worker in self._members):
                told = report.progress
                batches = told.batches if told.is_stepping else None
                if told.is_stepping:
                    self._lacking.discard(worker)
                self._standstill.note(worker, batches, self._clock())
            elif what == "failed":
                self._fail(worker, report.failed[:1000])
            elif what == "bye":
                self._finish(worker)
            self._go_on()

    def receivers(self, donor: int, view: int) -> list[int]:
        """Who takes the state that a worker gives in a view; nobody if that is not what holds."""
        with self._lock:
            if self._forming_since is not None or self._view is None:
                return []
            if (self._view.donor, self._view.number) != (donor, view):
                return []
            return [w for w in groups.unpack(self._view.receivers) if w in self._present]

    def watch(self) -> None:
        """Acts on what has not happened for too long; to be called every now and then."""
        with self._lock:
            self._go_on()
            watch = self._watch_members if self._forming_since is None else self._watch_forming
            for check in (self._watch_start, watch):
                if self.outcome is None:
                    check()

    @property
    def _spare(self) -> bool:
        """Whether a step needs fewer than all members."""
        return self._selection is not None

    @property
    def _present(self) -> set[int]:
        """Who is here."""
        return self._roster.present

    def _lose(self, worker: int, why: str, *, for_good: bool = False) -> None:
        self._roster.lose(worker, why, for_good=for_good)
        self._joined.discard(worker)
        self._standings.pop(worker, None)

    def _fail(self, worker: int, why: str) -> None:
        """All end with a worker that fails, unless it only wanted to join them."""
        if self._view is None or worker in self._joined:
            self._end(f"{self._roster.name(worker)} failed: {why}", [worker])
        else:
            self._values.forget(worker)

    def _finish(self, worker: int) -> None:
        self._roster.finish(worker)
        self._finished.add(worker)
        if not self._present - self._hung:
            self._close()

    def _close(self) -> None:
        """The training is done, of which those who hang may not know."""
        self.outcome = ""
        for worker in self._present:
            self._send(worker, self._last_order())

    def _last_order(self) -> Order:
        """What a worker is told of the outcome."""
        return Order(end=self.outcome, saver=self._saver) if self.outcome else Order(finished=True)

    def _stand(self, worker: int, standing: Standing) -> None:
        if standing.view > self._number + _MOST_AHEAD or standing.steps > _MOST_STEPS:
            raise ValueError(f"view {standing.view}, step {standing.steps}: these cannot be")
        groups.unpack(standing.members, self._count)
        in_view = worker in self._joined and worker in self._members
        if in_view and self._forming_since is None and standing.view < self._view.number:
            return  # it said so twice, and has its answer
        self._standings[worker] = standing
        self._hung.discard(worker)
        self._joined.add(worker)
        self._trained.add(worker)
        if self._forming_since is None:
            self._reform()

    def _reform(self) -> None:
        """Lets all members say where they stand, for a new view."""
        self._forming_since = self._clock()
        freeze = Order(freeze=True)
        for member in self._members:
            if member in self._present and member not in self._standings:
                self._send(member, freeze)

    def _go_on(self) -> None:
        """Does what can be done now."""
        if self.outcome is not None:
            return
        # Before the first view all are to see the values; later the members, of whom one that is
        # away may come back: what is agreed upon at the end holds for the chief, too.
        if self._view is None:
            missed, required = self._awaited(), self._present
        else:
            members = {*self._members}
            missed, required = self._roster.recently_lost() & members, self._present & members
        self._values.share(self._present, None if missed else required)
        if self._forming_since is not None and not self._unsaid() and not self._awaited():
            self._form()

    def _unsaid(self) -> set[int]:
        """Who is here and must say where it stands before there can be a view.

        Members do, and where they are too few also who is only about to join them.
        """
        asked = self._present
        too_few = len(self._standings) < self._rules.needed and not self._rules.elastic
        if self._view is not None and not too_few:
            asked = asked & set(self._members)
        return asked - self._standings.keys() - self._hung

    def _awaited(self) -> set[int]:
        """Who is away, and is waited for."""
        now, recent = self._clock(), self._roster.recently_lost()
        if self._view is not None:
            return recent if len(self._standings) < self._rules.needed else set()
        live = [s for s in self._standings.values() if s.is_live]
        told = {worker for standing in live for worker in groups.unpack(standing.members)}
        if told and len(live) >= self._rules.needed and now - self._began >= _GRACE_SECS:
            return set()  # enough are here, after a restart of this ps
        return recent & told if told else recent

    def _form(self) -> None:
        members = sorted(self._standings)
        live = [w for w in members if self._standings[w].is_live]
        too_few = len(members) < self._rules.needed
        if self._finished and (not live or too_few):
            self._standings.clear()
            self._forming_since = None
            for member in members:
                self._send(member, Order(finished=True))
            return
        if not members or (too_few and not self._rules.elastic):
            self._end(self._roster.missing(self._roster.away))
        elif not live and CHIEF not in members:
            self._end(f"{self._roster.missing([CHIEF])}, and nobody else has the state")
        else:
            self._install(members)

    def _install(self, members: list[int]) -> None:
        self._view = next_view(self._standings, self._rules.needed, self._number)
        self._number, needed = self._view.number, self._view.needed
        self._members = tuple(members)
        self._dropped = self.dropped
        is_spare = needed < len(members)
        self._selection = Selection(members, needed, self._view.steps) if is_spare else None
        self._standstill = Standstill(self._rules.timeout_secs)
        self._lacking = {*groups.unpack(self._view.receivers)}
        self._standings.clear()
        self._forming_since = None
        self._tell(in_words(self._view))
        for member in members:
            self._send(member, Order(view=self._view))

    def _note_ready(self, worker: int, step: int) -> None:
        if self._selection is None or self._forming_since is not None:
            return
        for decided, contributors in self._selection.ready(worker, step):
            order = Order()
            order.go.step, order.go.contributors = decided, groups.pack(contributors)
            for member in self._members:
                self._send(member, order)

    def _watch_start(self) -> None:
        """Ends what cannot begin any more."""
        gone = self._roster.gone()
        left = self._count - len(gone)
        needed = 1 if self._rules.elastic else self._rules.needed
        if self._view is None and gone and left < needed:
            self._end(self._roster.missing(gone))

    def _watch_members(self) -> None:
        now = self._clock()
        gone = {*self._roster.gone()} & {*self._members}
        enough = len(self._present - self._hung) >= self._rules.needed  # with who is about to join
        if gone and (self._rules.elastic or self._spare or enough):
            self._reform()
            self._go_on()
        elif gone and self._finished and not self._present - self._hung:
            self._close()  # these had only to take their leave
        elif gone:
            self._end(self._roster.missing(gone))
        elif self._standstill.is_hopeless(now):
            self._end(f"no worker made a step for {self._standstill.hopeless_secs:g} s")
        elif late := self._present & set(self._standstill.late(now)):
            self._lose_late(sorted(late))

    def _lose_late(self, late: Sequence[int]) -> None:
        limit = self._rules.timeout_secs
        why = f"no next batch for {limit:g} s, for which the others wait"
        left = (self._present & {*self._members}) - {*late}
        if not self._rules.elastic and len(left) < self._rules.needed:
            self._end(f"{self._roster.names(late)}: {why}", late)
            return
        self._leave_behind(late, why)
        self._reform()
        self._go_on()

    def _leave_behind(self, workers: Iterable[int], why: str) -> None:
        """Goes on without workers that are here, and hang; their streams may well come again."""
        for worker in workers:
            self._tell(f"{self._roster.name(worker)}: {why}.")
            self._lose(worker, "hung", for_good=True)
            self._hung.add(worker)
            self._drop(worker)

    def _watch_forming(self) -> None:
        waited, limit = self._clock() - self._forming_since, self._rules.timeout_secs
        unsaid = sorted(self._unsaid())
        behind = unsaid if waited > HOPELESS * limit else self._stuck(unsaid)
        if behind and waited > limit and self._could_go_on():
            self._leave_behind(behind, f"does not say where it stands for {waited:.0f} s")
            self._go_on()
        elif unsaid and waited > HOPELESS * limit:
            self._end(self._why_not_formed(unsaid, waited), unsaid)
        elif not self._present and not self._awaited():
            self._end(self._roster.missing(self._roster.away))

    def _why_not_formed(self, unsaid: Sequence[int], secs: float) -> str:
        members = {*self._members} if self._view else {*range(self._count)}
        hung, starting = sorted({*unsaid} & members), sorted({*unsaid} - members)
        reasons = []
        if lost := {*self._roster.gone()} & {*self._members} - self._hung:
            reasons.append(self._roster.missing(lost))
        if hung:
            why = f"hangs, nothing was heard of a step for {secs:.0f} s"
            reasons.append(f"{self._roster.names(hung)}: {why}")
        if starting:
            why = f"is here, and was not ready within {secs:.0f} s"
            reasons.append(f"{self._roster.names(starting)} {why}")
        return "; ".join(reasons)

    def _could_go_on(self) -> bool:
        """Whether those who stand somewhere have the state, and are enough."""
        is_live = any(standing.is_live for standing in self._standings.values())
        return is_live and (self._rules.elastic or len(self._standings) >= self._rules.needed)

    def _stuck(self, unsaid: Iterable[int]) -> list[int]:
        """Who hangs in a step: who compiles or saves may take as long as it takes."""
        return sorted({*unsaid} & {*self._standstill.stuck(self._clock())})

    def _end(self, why: str, because_of: Iterable[int] = ()) -> None:
        """All end; the first of those who have the state, and are well, saves it."""
        self.outcome = why
        live = {worker for worker, s in self._standings.items() if s.is_live}
        without = self._standings.keys() - live
        able = self._present & self._joined - self._hung - without - {*because_of}
        # Who was only given the state may not have it yet, and does not save then.
        self._saver = min(able - (self._lacking - live) or able, default=None)
        for worker in self._present:
            self._send(worker, self._last_order())
