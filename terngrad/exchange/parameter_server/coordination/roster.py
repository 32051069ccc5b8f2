"""One record for each worker of a training: its status, its standing, and when it was lost."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from terngrad.cluster.channel import name_of
from terngrad.cluster.pulse import Begun
from terngrad.exchange.parameter_server.coordination.transitions import (
    HERE,
    STATUS_AFTER,
    Status,
    WorkerEvent,
)
from terngrad.service.messages import Standing


@dataclasses.dataclass
class Visit:
    """What a worker has done since its stream began.

    Attributes:
      has_stood: whether it has reported a standing.
      held: that standing, while the worker is held back.
      chosen_for: last step to which it was chosen to contribute; -1 = none.
      has_contributed: whether such a step was made.
      lost_ps: ps that it does without.
    """

    has_stood: bool = False
    held: Standing | None = None
    chosen_for: int = -1
    has_contributed: bool = False
    lost_ps: frozenset[int] = frozenset()


@dataclasses.dataclass
class WorkerRecord:
    """What ps 0 knows about a worker.

    Attributes:
      status: state of the worker.
      standing: its last standing, while the status is STANDING.
      has_stood: whether it ever reported a standing; only then its losses are logged.
      lacks_state: whether it is a receiver of the view and has made no step since.
      visit: what it has done since its stream began.
      idle_visits: number of its last visits in which it stood and contributed to no step.
      held_until: seconds of the clock before which it joins only if it is needed.
      begun: operations with the others that it has begun, where it counts them, as it reported
        since its stream began.
      away_since: seconds of the clock; None while it is connected or done, and for all workers
        before the first connection.
      why: how it was lost; "" if it is not lost.
    """

    status: Status = Status.AWAY
    standing: Standing | None = None
    has_stood: bool = False
    lacks_state: bool = False
    visit: Visit = dataclasses.field(default_factory=lambda: Visit())
    idle_visits: int = 0
    held_until: float = 0.0
    begun: Begun = dataclasses.field(default_factory=Begun)
    away_since: float | None = None
    why: str = ""

    @property
    def is_here(self) -> bool:
        """Whether the worker's stream is open."""
        return self.status in HERE

    @property
    def is_idle(self) -> bool:
        """Whether it has made no step since it entered."""
        return self.lacks_state and not self.visit.has_contributed

    def note_ready(self, step: int) -> None:
        """Notes that it has the gradients of a step, so that the steps before were made."""
        if -1 < self.visit.chosen_for < step:
            self.visit.has_contributed = True
            self.idle_visits = 0

    def change(self, what: WorkerEvent, standing: Standing | None = None) -> None:
        """Applies an event; STAND comes with a standing."""
        self.status = STATUS_AFTER[self.status][what]
        self.standing = standing


class Roster:
    """The records of all workers; not safe for threads."""

    def __init__(
        self, hosts: Sequence[str], timeout_secs: float, clock: Callable[[], float]
    ) -> None:
        """Starts without connected workers; a worker away for `timeout_secs` counts as gone."""
        self._records = [WorkerRecord() for _ in hosts]
        self._hosts, self._timeout_secs, self._clock = hosts, timeout_secs, clock
        self._has_begun = False

    def __getitem__(self, worker: int) -> WorkerRecord:
        """Returns the record of a worker."""
        return self._records[worker]

    def __len__(self) -> int:
        """Number of workers of the training."""
        return len(self._records)

    def those(self, statuses: Iterable[Status]) -> set[int]:
        """Returns the workers with one of these statuses."""
        wanted = {*statuses}
        return {i for i, record in enumerate(self._records) if record.status in wanted}

    @property
    def here(self) -> set[int]:
        """Workers with an open stream."""
        return self.those(HERE)

    @property
    def able(self) -> set[int]:
        """Workers with an open stream that are not known to hang."""
        return self.those(HERE - {Status.RECONNECTED})

    @property
    def away(self) -> set[int]:
        """Lost workers and, after the first connection, workers that have never connected."""
        return {i for i, record in enumerate(self._records) if record.away_since is not None}

    @property
    def standings(self) -> dict[int, Standing]:
        """Standings of the workers that wait for a view."""
        found = ((i, record.standing) for i, record in enumerate(self._records))
        return {i: standing for i, standing in found if standing is not None}

    def lost_ps(self, workers: Iterable[int]) -> frozenset[int]:
        """Returns the ps that any of these workers does without."""
        return frozenset().union(*(self._records[worker].visit.lost_ps for worker in workers))

    def begin(self) -> None:
        """Notes that a worker is there: from now on, those that are not count as away."""
        if not self._has_begun:
            self._has_begun = True
            for each in self._records:
                each.away_since = self._clock()

    def connect(self, worker: int) -> bool:
        """Notes that a worker's stream has begun; returns whether the worker was lost before."""
        self.begin()
        record = self._records[worker]
        was_lost = bool(record.why)
        if not record.is_here:
            record.change(WorkerEvent.CONNECT)
            record.visit, record.begun = Visit(), Begun()
        record.away_since, record.why = None, ""
        return was_lost

    def lose(self, worker: int, why: str) -> None:
        """Notes that a worker's stream has ended; the worker may come back in time."""
        self._lose(worker, WorkerEvent.DISCONNECT, why, self._clock())

    def abandon(self, worker: int) -> None:
        """Notes that a worker hangs: it counts as gone at once."""
        self._lose(worker, WorkerEvent.ABANDON, "hung", self._clock() - self._timeout_secs)

    def finish(self, worker: int) -> None:
        """Notes that a worker has left because it is done."""
        self._records[worker].change(WorkerEvent.FINISH)

    def recently_lost(self) -> set[int]:
        """Returns the workers that are away but may still come back."""
        return self.away - self.gone()

    def expected(self) -> set[int]:
        """Returns the workers that have never connected and may still do so."""
        return {i for i in self.recently_lost() if not self._records[i].why}

    def gone(self) -> set[int]:
        """Returns the workers that have been away for too long."""
        now = self._clock()
        return {i for i in self.away if now - self._records[i].away_since >= self._timeout_secs}

    def missing(self, workers: Iterable[int]) -> str:
        """Says in a message why workers are away."""
        return ", ".join(self._missed(worker) for worker in sorted(workers))

    def name(self, worker: int) -> str:
        """Returns the name of a worker for messages."""
        return name_of(worker, self._hosts)

    def names(self, workers: Iterable[int]) -> str:
        """Returns the names of workers for messages."""
        return ", ".join(map(self.name, sorted(workers)))

    def _lose(self, worker: int, what: WorkerEvent, why: str, since: float) -> None:
        record = self._records[worker]
        record.change(what)
        record.why, record.away_since = why, since

    def _missed(self, worker: int) -> str:
        limit = f"within {self._timeout_secs:g} s"
        if why := self._records[worker].why:
            return f"{self.name(worker)} {why}, and did not come back {limit}"
        return f"{self.name(worker)} did not join {limit}"
