"""Limits the lines of a log, so that unknown callers cannot fill the disk."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable

from terngrad.cluster.errors import escaped

_PERIOD_SECS = 60.0
_MAX_LINES = 20  # lines of a kind in a period
_NUMBER = re.compile(r"\d+")


class _Period:
    """The lines of one kind in one period."""

    def __init__(self, start: float) -> None:
        self.start = start
        self.lines: dict[str, None] = {}  # the lines, in their order
        self.left_out = 0


class LogLimiter:
    """Passes on some lines of each kind a minute, and then how many it has left out.

    Within a minute the same line is logged once. Any thread may call.
    """

    def __init__(
        self, log: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Starts with no lines; `log` writes one."""
        self._log, self._clock = log, clock
        self._periods: dict[str, _Period] = {}
        self._lock = threading.Lock()

    def __call__(self, text: str, kind: str = "", max_lines: int = _MAX_LINES) -> None:
        """Logs a line, unless there were too many of its kind.

        Args:
          text: the line. Line breaks in it, which another process may have sent, are escaped.
          kind: lines of a kind share a limit; "" = the text without its numbers. Give one where
            other processes choose the text.
          max_lines: lines of this kind in a minute.
        """
        text = escaped(text, len(text))
        kind = kind or _NUMBER.sub("0", text)
        with self._lock:
            period = self._periods.get(kind)
            if period is None or self._is_over(period):
                lines = self._close(kind)
                period = self._periods[kind] = _Period(self._clock())
            else:
                lines = []
            if text not in period.lines and len(period.lines) < max_lines:
                period.lines[text] = None
                lines.append(text)
            else:
                period.left_out += 1
        for line in lines:
            self._log(line)

    def flush(self, *, is_end: bool = False) -> None:
        """Logs what was left out in the minutes that are over; call it regularly.

        Args:
          is_end: whether to log also what was left out in the current minutes.
        """
        with self._lock:
            of_all = self._periods.items()
            over = [kind for kind, period in of_all if is_end or self._is_over(period)]
            lines = [line for kind in over for line in self._close(kind)]
        for line in lines:
            self._log(line)

    def _is_over(self, period: _Period) -> bool:
        return self._clock() - period.start >= _PERIOD_SECS

    def _close(self, kind: str) -> list[str]:
        """Ends a kind's period; returns the line about what it left out, if it did."""
        period = self._periods.pop(kind, None)
        if period is None or not period.left_out:
            return []
        first = next(iter(period.lines))
        return [f"Left out {period.left_out} more lines like this one: {first}"]
