"""Staleness: the number of updates between the pull of parameters and the push of a gradient."""

from __future__ import annotations

import dataclasses


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
