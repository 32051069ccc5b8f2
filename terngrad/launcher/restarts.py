"""How often and how soon processes are started again that have failed."""

from __future__ import annotations

import time
from collections.abc import Callable

MOST_IN_A_ROW = 5  # short runs of a process after which it is left out
SHORT_SECS = 30.0  # of a run that ended too soon
_FIRST_PAUSE_SECS, _LONGEST_PAUSE_SECS = 1.0, 60.0


class Restarts:
    """The restarts that are left, with pauses that grow with each short run of a process."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Allows `most` restarts of all processes together."""
        self._left, self._clock = most, clock
        self._begun: dict[str, float] = {}
        self._short: dict[str, int] = {}  # short runs in a row, by process

    def begun(self, name: str) -> None:
        """Notes that a process starts."""
        self._begun[name] = self._clock()

    def pause_secs(self, name: str) -> float | None:
        """Notes that a process has failed; returns the pause before its restart, or None."""
        was_long = self._clock() - self._begun[name] >= SHORT_SECS
        self._short[name] = 0 if was_long else self._short.get(name, 0) + 1
        if not self._left or self.is_left_out(name):
            return None
        self._left -= 1
        return min(_LONGEST_PAUSE_SECS, _FIRST_PAUSE_SECS * 2.0 ** max(0, self._short[name] - 1))

    def is_left_out(self, name: str) -> bool:
        """Returns whether a process has failed too often in a row."""
        return self._short.get(name, 0) >= MOST_IN_A_ROW
