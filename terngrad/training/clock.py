"""Durations of training steps, without the work between them."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator

_SHORTEST_SECS = 1e-9  # so that steps per second are finite


class Clock:
    """Times steps only, without compilation, saving and summaries."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        """Starts without measurements; `now` returns the seconds since any fixed moment."""
        self._now = now
        self._steps = 0  # since the last report
        self._seconds = 0.0
        self._pace = math.inf  # seconds per step in the last call

    @contextlib.contextmanager
    def timing(self, steps: int) -> Iterator[None]:
        """Times a call that makes `steps` steps, unless it raises.

        The mean includes the first call only if there is no other: the first call also compiles or
        fills the input pipeline.
        """
        start = self._now()
        yield
        seconds = self._now() - start
        if self._pace < math.inf:
            self._steps += steps
            self._seconds += seconds
        self._pace = max(seconds / steps, _SHORTEST_SECS)

    def affordable(self, count: int, seconds: float) -> int:
        """Returns how many of `count` steps fit into `seconds`: at least 1; 1 before timing."""
        return max(1, min(count, int(seconds / self._pace)))

    def seconds_per_step(self) -> float:
        """Returns the mean since this was last called, or else that of the last timed call.

        It is infinite if nothing was timed.
        """
        mean = self._seconds / self._steps if self._steps else self._pace
        self._steps, self._seconds = 0, 0.0
        return max(mean, _SHORTEST_SECS)
