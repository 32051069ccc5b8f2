"""What a ps of either kind does: steps, bytes by worker, and how the workers wait."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable

_SHORTEST_SECS = 1e-9  # so that rates are finite


@dataclasses.dataclass
class WorkerFigures:
    """Of one worker.

    Attributes:
      bytes_in: that it sent.
      bytes_out: that it was sent.
      steps: of which it pushed a gradient that counts.
      parts: pieces of gradients that it pushed.
      late_secs: by which these came after the first worker's, in all.
      dropped: gradients that came after the end of their run.
      held_secs: in which it was held back, because it was too far ahead.
    """

    bytes_in: int = 0
    bytes_out: int = 0
    steps: int = 0
    parts: int = 0
    late_secs: float = 0.0
    dropped: int = 0
    held_secs: float = 0.0

    @property
    def mean_late_secs(self) -> float:
        """By which a piece comes after the first worker's."""
        return self.late_secs / self.parts if self.parts else 0.0


@dataclasses.dataclass(frozen=True)
class Report:
    """Figures since the report before.

    Attributes:
      seconds: since then.
      step: last that the workers made together; -1 if none was.
      steps: made since then.
      workers: figures of each.
    """

    seconds: float
    step: int
    steps: int
    workers: list[WorkerFigures]

    @property
    def dropped(self) -> int:
        """Gradients of all workers."""
        return sum(worker.dropped for worker in self.workers)

    @property
    def latest(self) -> int | None:
        """The worker that comes last; None if none does.

        Where steps are made without some, it is the one that took part in the fewest.
        """
        took_part = [worker.steps for worker in self.workers]
        late = [worker.mean_late_secs for worker in self.workers]
        if max(took_part) - min(took_part) > 1:  # 1: of the step under way
            return took_part.index(min(took_part))
        return late.index(max(late)) if max(late) > min(late) else None


class Figures:
    """Counts; any thread may call.

    Where workers step together, `pushed` and `made` count their steps; else `updated` does.
    """

    def __init__(self, workers: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Begins to count."""
        self._clock = clock
        self._lock = threading.Lock()
        self._step = -1
        self._pushed = [-1] * workers  # last step of each
        self._begin(workers)

    def received(self, worker: int, octets: int) -> None:
        """Bytes came from a worker."""
        with self._lock:
            self._workers[worker].bytes_in += octets

    def sent(self, worker: int, octets: int) -> None:
        """Bytes went to a worker."""
        with self._lock:
            self._workers[worker].bytes_out += octets

    def pushed(self, worker: int, step: int, late_secs: float) -> None:
        """A worker pushed a piece of a step so long after the first one did."""
        with self._lock:
            self._workers[worker].steps += step != self._pushed[worker]
            self._pushed[worker] = step
            self._workers[worker].parts += 1
            self._workers[worker].late_secs += late_secs

    def made(self, step: int) -> None:
        """There is a result of a step."""
        with self._lock:
            if step != self._step:  # a smaller one: all have begun again from a checkpoint
                self._steps += step - self._step if 0 <= self._step < step else 1
                self._step = step

    def updated(self, worker: int) -> None:
        """A worker's gradient was applied: a step of its own."""
        with self._lock:
            self._workers[worker].steps += 1
            self._steps += 1

    def dropped(self, worker: int) -> None:
        """A worker's gradient came too late."""
        with self._lock:
            self._workers[worker].dropped += 1

    def held(self, worker: int, secs: float) -> None:
        """A worker was held back for so long."""
        with self._lock:
            self._workers[worker].held_secs += secs

    def report(self) -> Report:
        """The figures since the last call."""
        with self._lock:
            seconds = max(self._clock() - self._since, _SHORTEST_SECS)
            report = Report(seconds, self._step, self._steps, self._workers)
            self._begin(len(self._workers))
            return report

    def _begin(self, workers: int) -> None:
        self._since = self._clock()
        self._steps = 0
        self._workers = [WorkerFigures() for _ in range(workers)]
