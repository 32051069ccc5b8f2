"""How far a worker may run ahead of the slowest."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_LOOK_SECS = 0.5


class Bound:
    """Counts the workers' steps, and holds those back that are more than so many steps ahead.

    Only workers that take part count: those who made a step in the last `timeout_secs` seconds, or
    are held back, and have not left. Who joins later, or again, begins at the step of the slowest.
    With a bound S, at most (2 S + 1) (N - 1) updates of the N workers that take part come between a
    pull and the push of its gradient, at the ps that holds them back, ps 0. More may come at the
    others, from which a worker has pulled before ps 0 holds it back, and before the first push of
    one that joins, for which nobody waits until then.
    """

    def __init__(self, timeout_secs: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Nobody takes part yet."""
        self._timeout_secs = timeout_secs
        self._clock = clock
        self._steps: dict[int, int] = {}
        self._seen_at: dict[int, float] = {}
        self._held: set[int] = set()
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
        """A worker has gone; nobody waits for it."""
        with self._changed:
            self._steps.pop(worker, None)
            self._changed.notify_all()

    def wait(self, worker: int, steps: int, goes_on: Callable[[], bool]) -> float:
        """Returns when a worker is at most `steps` ahead of the slowest (-1 = no bound).

        Or when `goes_on`, which is looked at twice a second, says that it need not wait any more.

        Returns:
          The seconds that it was held.
        """
        with self._changed:
            began = self._clock()
            self._held.add(worker)
            while steps >= 0 and self._ahead(worker) > steps and goes_on():
                self._changed.wait(_LOOK_SECS)
            self._held.discard(worker)
            self._seen_at[worker] = self._clock()
            return self._seen_at[worker] - began

    def _ahead(self, worker: int) -> int:
        return self._steps.get(worker, 0) - min(self._counting().values(), default=0)

    def _counting(self) -> dict[int, int]:
        oldest = self._clock() - self._timeout_secs
        takes_part = lambda worker: worker in self._held or self._seen_at[worker] > oldest
        return {worker: n for worker, n in self._steps.items() if takes_part(worker)}
