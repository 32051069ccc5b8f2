"""Moving averages of the weights, which evaluation uses instead of the last weights."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf


class MovingAverages:
    """shadow -= (1 - d) (shadow - weight), d = min(decay, (1 + step) / (10 + step))."""

    def __init__(self, variables: Sequence[tf.Variable], decay: float) -> None:
        """Averages `variables`; `decay` is the share of the average that a late step keeps."""
        self._variables = variables
        self._decay = decay
        self.shadows = [tf.Variable(v.read_value(), trainable=False) for v in variables]

    def update(self, step: tf.Tensor) -> None:
        """Adds the weights after an update; `step` (int64 scalar) updates came before it."""
        done = tf.cast(step, tf.float32)
        kept = tf.minimum(self._decay, (1.0 + done) / (10.0 + done))
        for shadow, variable in zip(self.shadows, self._variables, strict=True):
            _blend(shadow, variable, kept)


def _blend(shadow: tf.Variable, variable: tf.Variable, kept: tf.Tensor) -> None:
    """Sets shadow = kept shadow + (1 - kept) variable, with the kernels of other updates."""
    if "GPU" in shadow.device:
        tf.raw_ops.ResourceApplyGradientDescent(
            var=shadow.handle, alpha=1.0 - kept, delta=shadow - variable
        )
        return
    # A proximal step, (shadow - a variable) / (1 + a l2), needs no temporary of the variable's
    # size, which saves a third of the time. It has no GPU kernel.
    growth = (1.0 - kept) / kept
    tf.raw_ops.ResourceApplyProximalGradientDescent(
        var=shadow.handle, alpha=-growth, l1=0.0, l2=-1.0, delta=variable.read_value()
    )
