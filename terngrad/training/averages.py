"""Moving averages of the weights, which evaluation uses instead of the last weights."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf


class MovingAverages:
    """shadow -= (1 - d) (shadow - weight), d = min(decay, (1 + step) / (10 + step))."""

    def __init__(self, variables: Sequence[tf.Variable], decay: float) -> None:
        """Follows `variables`; `decay` is the share of the average that a late step keeps."""
        self._variables = variables
        self._decay = decay
        self.shadows = [tf.Variable(v.read_value(), trainable=False) for v in variables]

    def update(self, step: tf.Tensor) -> None:
        """Takes in the weights after an update; `step` (int64 scalar) updates came before it."""
        done = tf.cast(step, tf.float32)
        share = 1.0 - tf.minimum(self._decay, (1.0 + done) / (10.0 + done))
        for shadow, variable in zip(self.shadows, self._variables, strict=True):
            # This update is a gradient descent step: its kernel does it in one pass.
            tf.raw_ops.ResourceApplyGradientDescent(
                var=shadow.handle, alpha=share, delta=shadow - variable
            )
