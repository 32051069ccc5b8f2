"""Staleness, and the bound on how far a worker may run ahead of the slowest."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable

_POLL_SECS = 0.5


class StalenessBound:
    """Counts the workers' steps, and holds back workers that are too many steps ahead.

    Only active workers count: workers that are held back or made a step in the last `timeout_secs`
    seconds, and have not left. A worker that joins late or again starts at the step of the slowest.
    With N active workers and a bound of S steps, ps 0, which holds workers back, applies at most
    (2 S + 1) (N - 1) updates between a pull and the push of its gradient. The other ps may apply
    more, since a worker pulls from them before ps 0 holds it back. All ps may apply more before the
    first push of a worker that joins, since no worker waits for it before that push.
    """

    def __init__(self, timeout_secs: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Starts without workers."""
        self._timeout_secs = timeout_secs
        self._clock = clock
        self._steps: dict[int, int] = {}
        self._seen_at: dict[int, float] = {}
        self._waiting: set[int] = set()
        self._changed = threading.Condition()

    def step(self, worker: int) -> None:
        """Counts a step of a worker."""
        with self._changed:
            counting = self._counting()
            if worker in counting:
                self._steps[worker] += 1
            else:
                self._steps[worker] = min(counting.values(), default=1)
            self._seen_at[worker] = self._clock()
            self._changed.notify_all()

    def leave(self, worker: int) -> None:
        """Forgets a worker that has left."""
        with self._changed:
            self._steps.pop(worker, None)
            self._changed.notify_all()

    def wait(self, worker: int, steps: int, continues: Callable[[], bool]) -> float:
        """Waits until a worker is at most `steps` ahead of the slowest (-1 = no bound).

        Also returns soon after `continues` becomes false.

        Returns:
          The seconds that the worker was held back.
        """
        with self._changed:
            began = self._clock()
            self._waiting.add(worker)
            while steps >= 0 and self._ahead(worker) > steps and continues():
                self._changed.wait(_POLL_SECS)
            self._waiting.discard(worker)
            self._seen_at[worker] = self._clock()
            return self._seen_at[worker] - began

    def _ahead(self, worker: int) -> int:
        return self._steps.get(worker, 0) - min(self._counting().values(), default=0)

    def _counting(self) -> dict[int, int]:
        oldest = self._clock() - self._timeout_secs
        takes_part = lambda worker: worker in self._waiting or self._seen_at[worker] > oldest
        return {worker: n for worker, n in self._steps.items() if takes_part(worker)}


@dataclasses.dataclass
class Staleness:
    """Statistics of the updates since the last report."""

    count: int = 0
    total: int = 0
    largest: int = 0

    def add(self, value: int) -> None:
        """Counts an update."""
        self.count += 1
        self.total += value
        self.largest = max(self.largest, value)

    @property
    def mean(self) -> float:
        """The mean staleness; 0 without updates."""
        return self.total / self.count if self.count else 0.0
