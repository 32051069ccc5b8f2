"""Which workers are here, and for how long the others have been away."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from terngrad.cluster.channel import name_of


class Roster:
    """The workers of a training; not safe for threads.

    Attributes:
      present: who is here.
      away: who is not, from the first arrival on.
    """

    def __init__(
        self, hosts: Sequence[str], timeout_secs: float, clock: Callable[[], float]
    ) -> None:
        """Nobody has come yet; who is away for `timeout_secs` is gone for good."""
        self.present: set[int] = set()
        self._hosts, self._timeout_secs, self._clock = hosts, timeout_secs, clock
        self._away_since: dict[int, float] = {}
        self._why: dict[int, str] = {}

    @property
    def away(self) -> list[int]:
        """In the order in which they went."""
        return list(self._away_since)

    def come(self, worker: int) -> bool:
        """A worker has come; returns whether it was lost before."""
        if not self.present and not self._away_since:
            self._away_since = dict.fromkeys(range(len(self._hosts)), self._clock())
        self.present.add(worker)
        self._away_since.pop(worker, None)
        return self._why.pop(worker, None) is not None

    def lose(self, worker: int, why: str, *, for_good: bool = False) -> None:
        """A worker is lost; it may come back in time, unless it is for good."""
        self.present.discard(worker)
        self._why[worker] = why
        self._away_since[worker] = self._clock() - (self._timeout_secs if for_good else 0.0)

    def finish(self, worker: int) -> None:
        """A worker has left because all is done."""
        self.present.discard(worker)

    def recently_lost(self) -> set[int]:
        """Who is away for so short a time that it may come back."""
        return {*self._away_since} - {*self.gone()}

    def gone(self) -> list[int]:
        """Who is away for too long."""
        now = self._clock()
        away = self._away_since.items()
        return [worker for worker, since in away if now - since >= self._timeout_secs]

    def missing(self, workers: Iterable[int]) -> str:
        """Says of workers that are away what happened to them."""
        return ", ".join(self._missed(worker) for worker in sorted(workers))

    def name(self, worker: int) -> str:
        """What messages call a worker."""
        return name_of(worker, self._hosts)

    def names(self, workers: Iterable[int]) -> str:
        """The names of several."""
        return ", ".join(map(self.name, sorted(workers)))

    def _missed(self, worker: int) -> str:
        limit = f"within {self._timeout_secs:g} s"
        if why := self._why.get(worker):
            return f"{self.name(worker)} {why}, and did not come back {limit}"
        return f"{self.name(worker)} did not come {limit}"
