"""Time that passes when somebody says so."""

from __future__ import annotations


class Clock:
    """Seconds since a simulation began."""

    def __init__(self) -> None:
        """It begins."""
        self.now = 0.0

    def __call__(self) -> float:
        """The time."""
        return self.now
