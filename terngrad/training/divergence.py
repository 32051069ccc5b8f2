"""How a training ends that diverged."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from terngrad.layout import Layout
from terngrad.training.classifier import Losses


class NotFiniteError(ValueError):
    """Names what is NaN or infinite: a loss, a gradient or a weight."""


class DivergedError(ValueError):
    """The same, and the last checkpoint before."""


def not_finite(losses: Losses, scales: tf.Tensor, layout: Layout) -> list[str]:
    """Says what of a step is NaN or infinite; empty if all is well.

    Args:
      losses: of the step.
      scales: float32 [v], of the coded variables; infinite where a gradient is not finite.
      layout: names the variables.
    """
    values = zip(("entropy_loss", "reg_loss"), map(float, losses), strict=True)
    bad = [f"{name} is {value}" for name, value in values if not np.isfinite(value)]
    return bad + [
        f"the gradient of {layout.names[layout.coded[i]]} is not finite"
        for i in np.flatnonzero(~np.isfinite(scales.numpy()))
    ]
