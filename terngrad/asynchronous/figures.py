"""What a ps of asynchronous training does: updates, bytes and waiting, by worker."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class WorkerFigures:
    """Of one worker.

    Attributes:
      updates: its gradients that were applied.
      dropped: its gradients that came after the end of their run.
      bytes_in: that it sent.
      bytes_out: that it was sent.
      held_secs: in which it was held back, because it was too far ahead.
    """

    updates: int = 0
    dropped: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    held_secs: float = 0.0


@dataclasses.dataclass(frozen=True)
class Report:
    """Figures since the report before.

    Attributes:
      seconds: since then.
      workers: figures of each.
    """

    seconds: float
    workers: tuple[WorkerFigures, ...]

    @property
    def updates(self) -> int:
        """Of all workers."""
        return sum(worker.updates for worker in self.workers)

    @property
    def dropped(self) -> int:
        """Of all workers."""
        return sum(worker.dropped for worker in self.workers)


class Figures:
    """Counts; any thread may call."""

    def __init__(self, workers: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Begins to count."""
        self._clock = clock
        self._since = clock()
        self._workers = [WorkerFigures()] * workers
        self._lock = threading.Lock()

    def add(
        self,
        worker: int,
        *,
        updates: int = 0,
        dropped: int = 0,
        bytes_in: int = 0,
        bytes_out: int = 0,
        held_secs: float = 0.0,
    ) -> None:
        """Adds to the figures of a worker."""
        with self._lock:
            before = self._workers[worker]
            self._workers[worker] = WorkerFigures(
                before.updates + updates,
                before.dropped + dropped,
                before.bytes_in + bytes_in,
                before.bytes_out + bytes_out,
                before.held_secs + held_secs,
            )

    def report(self) -> Report:
        """What was counted since this was last called."""
        with self._lock:
            now, found = self._clock(), tuple(self._workers)
            seconds, self._since = now - self._since, now
            self._workers = [WorkerFigures()] * len(found)
            return Report(max(seconds, 1e-9), found)
