"""The workers of a training, as one of them sees them."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from terngrad.cluster.pulse import Pulse
from terngrad.exchange.connection import Connection


@dataclasses.dataclass(frozen=True)
class Workers:
    """The processes that train together.

    Attributes:
      rank: index of this one; 0 is the chief, which writes checkpoints and summaries.
      size: number of them.
      split_data: each reads its share of the records.
      connect: returns the connection between them, None if there is but one; called once, after
        TensorFlow's threads are set and before it computes anything.
      agree: compares facts with the others; ValueError names a difference. It waits for them;
        InterruptionError: one of them came or went.
      pulse: how far this one is, for the others to see.
      aggregated: of how many of them the gradients make a step; 0 = of all.
      at_loss: called in turn where the loss of another one ends this one at once, without its main
        thread; each returns what the last line shall say of it.
    """

    rank: int = 0
    size: int = 1
    split_data: bool = True
    connect: Callable[[], Connection | None] = lambda: None
    agree: Callable[[Mapping[str, str]], None] = lambda facts: None
    pulse: Pulse = dataclasses.field(default_factory=Pulse)
    aggregated: int = 0
    at_loss: list[Callable[[], str]] = dataclasses.field(default_factory=list)

    @property
    def batches_per_step(self) -> int:
        """Number of batches, one from each contributing worker, that make a step."""
        return self.aggregated or self.size

    @property
    def is_chief(self) -> bool:
        """Whether this one writes checkpoints and summaries."""
        return self.rank == 0

    @property
    def label(self) -> int | None:
        """What the lines of a step begin with; None for a process alone."""
        return self.rank if self.size > 1 else None


ALONE = Workers()


def fingerprint(values: Sequence[np.ndarray]) -> str:
    """Differs between lists of arrays that are not equal bit for bit."""
    digest = hashlib.sha256()
    for value in values:
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()[:16]
