"""Durations of training steps, without what happens between them."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator

_SHORTEST_SECS = 1e-9  # so that steps a second are finite


class Clock:
    """Times steps only: not compiling, saving or writing summaries."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        """Nothing is timed yet; `now` tells seconds since some point in time."""
        self._now = now
        self._steps = 0  # since the last report
        self._seconds = 0.0
        self._pace = math.inf  # seconds a step, in the last call

    @contextlib.contextmanager
    def timing(self, steps: int) -> Iterator[None]:
        """Times a call that makes so many steps, unless it raises.

        The first one counts for the mean only if there is no other: it also compiles, or fills the
        input pipeline.
        """
        start = self._now()
        yield
        seconds = self._now() - start
        if self._pace < math.inf:
            self._steps += steps
            self._seconds += seconds
        self._pace = max(seconds / steps, _SHORTEST_SECS)

    def affordable(self, count: int, seconds: float) -> int:
        """How many of `count` steps fit into so many seconds, at least 1; 1 if none was timed."""
        return max(1, min(count, int(seconds / self._pace)))

    def seconds_per_step(self) -> float:
        """Mean since the last call of this; of the last call timed where there was none since.

        Infinite if nothing was timed at all.
        """
        mean = self._seconds / self._steps if self._steps else self._pace
        self._steps, self._seconds = 0, 0.0
        return max(mean, _SHORTEST_SECS)
