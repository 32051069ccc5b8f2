"""What a training loop tells about a step."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Progress:
    """State of a run after `step` steps.

    Attributes:
      step: steps done since the training began, earlier runs included.
      entropy_loss: cross entropy of the step's batch.
      reg_loss: weight decay.
      learning_rate: of the step.
      sec_per_batch: mean duration of the steps since the last report, in seconds.
      examples_per_sec: images a second in the same time.
    """

    step: int
    entropy_loss: float
    reg_loss: float
    learning_rate: float
    sec_per_batch: float
    examples_per_sec: float

    @property
    def total_loss(self) -> float:
        """What the step's gradient belongs to."""
        return self.entropy_loss + self.reg_loss
