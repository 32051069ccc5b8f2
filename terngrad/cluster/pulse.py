"""How far each process is, and which one all others wait for.

A process whose main thread hangs still says that it lives, for another thread does so. But while
all train in step, one that gets no next batch falls behind the others, who wait for its gradients:
it alone has not taken the batch that they compute with. A process that computes for long, however
long, is not behind.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

HOPELESS = 10  # time-outs, after which nobody waits any more for what may take long


class Pulse:
    """How far this process is.

    Attributes:
      batches: that it has taken since the training began, while it makes steps; None while it does
        something else, which may take as long as it takes: compile, save, write summaries.
    """

    def __init__(self) -> None:
        """No step is under way."""
        self.batches: int | None = None

    @contextlib.contextmanager
    def steps(self, done: int) -> Iterator[None]:
        """Within this block steps are made; so many were done before."""
        self.batches = done
        try:
            yield
        finally:
            self.batches = None

    def tick(self) -> None:
        """Counts a batch; from any thread."""
        if self.batches is not None:
            self.batches += 1


class Standstill:
    """Finds the processes that are behind while nothing moves.

    Attributes:
      hopeless_secs: after so long without a step nobody waits any more, whoever is at fault.
    """

    def __init__(self, timeout_secs: float) -> None:
        """Lets things stand still for so long."""
        self._timeout_secs = timeout_secs
        self.hopeless_secs = HOPELESS * timeout_secs
        self._batches: dict[int, int | None] = {}
        self._moved_at: dict[int, float] = {}

    def note(self, rank: int, batches: int | None, now: float) -> None:
        """Takes down how far a process says it is; see `Pulse`."""
        if rank not in self._batches or self._batches[rank] != batches:
            self._batches[rank] = batches
            self._moved_at[rank] = now

    def is_hopeless(self, now: float) -> bool:
        """Whether all make steps, and none has made one for much longer than a step can take."""
        at_work = self._batches and None not in self._batches.values()
        return bool(at_work) and now - max(self._moved_at.values()) > self.hopeless_secs

    def stuck(self, now: float) -> list[int]:
        """Processes that are within a step, the same one for too long."""
        at_work = [rank for rank, count in self._batches.items() if count is not None]
        return [rank for rank in at_work if now - self._moved_at[rank] > self._timeout_secs]

    def late(self, now: float) -> list[int]:
        """Processes for whose next batch the others have waited too long."""
        counts = {rank: count for rank, count in self._batches.items() if count is not None}
        first = max(counts.values(), default=0)
        behind = [rank for rank, count in counts.items() if count < first]
        if not behind or now - max(self._moved_at.values()) <= self._timeout_secs:
            return []
        return behind
