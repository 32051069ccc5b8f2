"""Figures of a ps of either kind: steps, bytes by worker, and how late workers are."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable

_SHORTEST_SECS = 1e-9  # so that rates are finite


@dataclasses.dataclass
class WorkerFigures:
    """Figures of one worker.

    Attributes:
      bytes_in: bytes that the worker sent.
      bytes_out: bytes sent to the worker.
      steps: steps in which its gradient counted.
      pieces: pieces of gradients that it pushed.
      late_secs: sum of the pieces' delays after the first worker's.
      dropped: gradients that were dropped.
      blocked_secs: time for which it was held back because it was too far ahead.
    """

    bytes_in: int = 0
    bytes_out: int = 0
    steps: int = 0
    pieces: int = 0
    late_secs: float = 0.0
    dropped: int = 0
    blocked_secs: float = 0.0

    @property
    def mean_late_secs(self) -> float:
        """Mean delay of a piece after the first worker's."""
        return self.late_secs / self.pieces if self.pieces else 0.0


@dataclasses.dataclass(frozen=True)
class IntervalFigures:
    """Figures since the last report.

    Attributes:
      seconds: time since then.
      step: last step that the workers made together; -1 if there was none.
      steps: number of steps since then.
      workers: figures of each worker.
    """

    seconds: float
    step: int
    steps: int
    workers: list[WorkerFigures]

    @property
    def dropped(self) -> int:
        """Dropped gradients of all workers."""
        return sum(worker.dropped for worker in self.workers)

    @property
    def slowest(self) -> int | None:
        """The slowest worker; None if all are alike.

        If steps are made without some workers, it is the worker that took part in the fewest.
        """
        took_part = [worker.steps for worker in self.workers]
        late = [worker.mean_late_secs for worker in self.workers]
        if max(took_part) - min(took_part) > 1:  # 1 may be due to the current step
            return took_part.index(min(took_part))
        return late.index(max(late)) if max(late) > min(late) else None


class Figures:
    """Counts steps and bytes; any thread may call.

    If workers step together, `pushed` and `made` count their steps; otherwise `updated` does.
    """

    def __init__(self, workers: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Starts to count."""
        self._clock = clock
        self._lock = threading.Lock()
        self._step = -1
        self._pushed = [-1] * workers  # last step of each worker
        self._begin(workers)

    def received(self, worker: int, octets: int) -> None:
        """Counts bytes from a worker."""
        with self._lock:
            self._workers[worker].bytes_in += octets

    def sent(self, worker: int, octets: int) -> None:
        """Counts bytes to a worker."""
        with self._lock:
            self._workers[worker].bytes_out += octets

    def pushed(self, worker: int, step: int, late_secs: float) -> None:
        """Counts a worker's piece of a step, `late_secs` after the first worker's."""
        with self._lock:
            self._workers[worker].steps += step != self._pushed[worker]
            self._pushed[worker] = step
            self._workers[worker].pieces += 1
            self._workers[worker].late_secs += late_secs

    def made(self, step: int) -> None:
        """Counts a step when its first result is ready."""
        with self._lock:
            if step != self._step:  # a smaller one: all workers restarted from a checkpoint
                self._steps += step - self._step if 0 <= self._step < step else 1
                self._step = step

    def updated(self, worker: int) -> None:
        """Counts a step that a worker made on its own."""
        with self._lock:
            self._workers[worker].steps += 1
            self._steps += 1

    def dropped(self, worker: int) -> None:
        """Counts a worker's dropped gradient."""
        with self._lock:
            self._workers[worker].dropped += 1

    def blocked(self, worker: int, secs: float) -> None:
        """Adds to the time for which a worker was held back."""
        with self._lock:
            self._workers[worker].blocked_secs += secs

    def report(self) -> IntervalFigures:
        """Returns the figures since the last call."""
        with self._lock:
            seconds = max(self._clock() - self._since, _SHORTEST_SECS)
            report = IntervalFigures(seconds, self._step, self._steps, self._workers)
            self._begin(len(self._workers))
            return report

    def _begin(self, workers: int) -> None:
        self._since = self._clock()
        self._steps = 0
        self._workers = [WorkerFigures() for _ in range(workers)]
