"""Virtual time."""

from __future__ import annotations


class Clock:
    """A clock that counts the seconds of a simulation; `now` sets it."""

    def __init__(self) -> None:
        """Starts at 0."""
        self.now = 0.0

    def __call__(self) -> float:
        """Returns the time."""
        return self.now
