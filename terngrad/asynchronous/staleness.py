"""How many updates came between the pull of the parameters and the push of their gradient."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Staleness:
    """Of the updates since it was last asked for."""

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
        """0 where there was no update."""
        return self.total / self.count if self.count else 0.0
