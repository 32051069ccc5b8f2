"""What a training loop reports about a step."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # code that only shows progress does not need TensorFlow
    import tensorflow as tf

    from terngrad.training.classifier import Losses


@dataclasses.dataclass(frozen=True)
class Progress:
    """State of a run after `step` steps.

    Attributes:
      step: steps done since the training began, earlier runs included.
      entropy_loss: cross entropy of the step's batch.
      reg_loss: weight decay.
      learning_rate: learning rate of the step.
      sec_per_batch: mean duration of the steps since the last report, in seconds.
      examples_per_sec: images per second since the last report.
    """

    step: int
    entropy_loss: float
    reg_loss: float
    learning_rate: float
    sec_per_batch: float
    examples_per_sec: float

    @property
    def total_loss(self) -> float:
        """The loss whose gradient the step computed."""
        return self.entropy_loss + self.reg_loss


def make_progress(
    step: int, losses: Losses, learning_rate: tf.Tensor, seconds: float, batch_size: int
) -> Progress:
    """Returns the state after a step.

    Args:
      step: steps done.
      losses: losses of the step.
      learning_rate: learning rate of the step.
      seconds: mean duration of a step since the last report.
      batch_size: images in a step.
    """
    entropy, regularization = map(float, losses)
    rate = float(learning_rate)
    return Progress(step, entropy, regularization, rate, seconds, batch_size / seconds)
