"""One record for each worker of a training: what it is, and since when it is away."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from terngrad.cluster.channel import name_of
from terngrad.exchange.parameter_server.coordination.transitions import (
    HERE,
    STATUS_AFTER,
    Status,
    WorkerEvent,
)
from terngrad.service.messages import Standing


@dataclasses.dataclass
class WorkerRecord:
    """What ps 0 knows of a worker.

    Attributes:
      status: what it is.
      standing: where it stands, while the status is STANDING.
      has_stood: it has said at some time where it stands: the log tells what happens to it.
      lacks_state: the view has it receive a state, and it has made no step since.
      away_since: seconds of the clock; None while it is here or done, or nobody has connected yet.
      why: what happened to it when it was lost; "" otherwise.
    """

    status: Status = Status.AWAY
    standing: Standing | None = None
    has_stood: bool = False
    lacks_state: bool = False
    away_since: float | None = None
    why: str = ""

    @property
    def is_here(self) -> bool:
        """Whether its stream is open."""
        return self.status in HERE

    def change(self, what: WorkerEvent, standing: Standing | None = None) -> None:
        """Notes what happens to it; with STAND: where it stands."""
        self.status = STATUS_AFTER[self.status][what]
        self.standing = standing


class Roster:
    """The records of all workers; not safe for threads."""

    def __init__(
        self, hosts: Sequence[str], timeout_secs: float, clock: Callable[[], float]
    ) -> None:
        """Nobody has connected yet; a worker that is away for `timeout_secs` is gone for good."""
        self._records = [WorkerRecord() for _ in hosts]
        self._hosts, self._timeout_secs, self._clock = hosts, timeout_secs, clock
        self._has_begun = False

    def __getitem__(self, worker: int) -> WorkerRecord:
        """The record of a worker."""
        return self._records[worker]

    def __len__(self) -> int:
        """Workers of the training."""
        return len(self._records)

    def those(self, statuses: Iterable[Status]) -> set[int]:
        """Workers that are one of these."""
        wanted = {*statuses}
        return {i for i, record in enumerate(self._records) if record.status in wanted}

    @property
    def here(self) -> set[int]:
        """Workers whose stream is open."""
        return self.those(HERE)

    @property
    def able(self) -> set[int]:
        """Workers that are here and, as far as is known, do not hang."""
        return self.those(HERE - {Status.RECONNECTED})

    @property
    def away(self) -> set[int]:
        """Workers that are lost or, from the first connection of any on, have never connected."""
        return {i for i, record in enumerate(self._records) if record.away_since is not None}

    @property
    def standings(self) -> dict[int, Standing]:
        """Where the workers stand that wait for a view."""
        found = ((i, record.standing) for i, record in enumerate(self._records))
        return {i: standing for i, standing in found if standing is not None}

    def connect(self, worker: int) -> bool:
        """A worker's stream has begun; returns whether the worker was lost before."""
        if not self._has_begun:
            self._has_begun = True
            for each in self._records:
                each.away_since = self._clock()
        record = self._records[worker]
        was_lost = bool(record.why)
        if not record.is_here:
            record.change(WorkerEvent.CONNECT)
        record.away_since, record.why = None, ""
        return was_lost

    def lose(self, worker: int, why: str) -> None:
        """A worker's stream has ended; the worker may come back in time."""
        self._lose(worker, WorkerEvent.DISCONNECT, why, self._clock())

    def abandon(self, worker: int) -> None:
        """A worker hangs: the others go on as if it was away for too long."""
        self._lose(worker, WorkerEvent.ABANDON, "hung", self._clock() - self._timeout_secs)

    def finish(self, worker: int) -> None:
        """A worker has left because all is done."""
        self._records[worker].change(WorkerEvent.FINISH)

    def recently_lost(self) -> set[int]:
        """Workers that are away for so short a time that they may come back."""
        return self.away - self.gone()

    def gone(self) -> set[int]:
        """Workers that are away for too long."""
        now = self._clock()
        return {i for i in self.away if now - self._records[i].away_since >= self._timeout_secs}

    def missing(self, workers: Iterable[int]) -> str:
        """What happened to workers that are away, for a message."""
        return ", ".join(self._missed(worker) for worker in sorted(workers))

    def name(self, worker: int) -> str:
        """What messages call a worker."""
        return name_of(worker, self._hosts)

    def names(self, workers: Iterable[int]) -> str:
        """The names of several."""
        return ", ".join(map(self.name, sorted(workers)))

    def _lose(self, worker: int, what: WorkerEvent, why: str, since: float) -> None:
        record = self._records[worker]
        record.change(what)
        record.why, record.away_since = why, since

    def _missed(self, worker: int) -> str:
        limit = f"within {self._timeout_secs:g} s"
        if why := self._records[worker].why:
            return f"{self.name(worker)} {why}, and did not come back {limit}"
        return f"{self.name(worker)} did not come {limit}"
