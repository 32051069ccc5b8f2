"""Moving averages of the weights, which evaluation uses instead of the last weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import tensorflow as tf

from terngrad.ops.gradient_kernels import Averages

# With many fragments the power would be 0, and its inverse infinite. A weight over this bound is
# finite up to 2**17.
_LEAST_KEPT = 2.0**-110


class MovingAverages:
    """shadow -= (1 - d) (shadow - weight), d = min(decay, (1 + step) / (10 + step)).

    With `stride` H above 1, d is the power H of this, with the last of the H steps, but at least
    2^-110.

    Attributes:
      shadows: the averages.
      stride: number of steps between two updates of a variable.
    """

    def __init__(self, variables: Sequence[tf.Variable], decay: float, stride: int = 1) -> None:
        """Averages `variables`.

        Args:
          variables: the weights.
          decay: share of the average that a late step keeps.
          stride: see class.
        """
        self._variables = variables
        self._decay = decay
        self.stride = stride
        self.shadows = [tf.Variable(v.read_value(), trainable=False) for v in variables]

    def update(self, step: tf.Tensor, chosen: Iterable[int] | None = None) -> None:
        """Adds the weights after an update.

        Args:
          step: int64 scalar, number of steps before the first one that the update stands for.
          chosen: indices of the variables whose averages are updated; None = all.
        """
        kept = self._kept(step)
        for i in range(len(self.shadows)) if chosen is None else chosen:
            _blend(self.shadows[i], self._variables[i], kept)

    def part(self, step: tf.Tensor, chosen: Sequence[int]) -> Averages:
        """Returns the averages of chosen variables, for kernels that update them with the weights.

        It takes the arguments of `update`, and gives the same bits on CPUs.
        """
        return Averages([self.shadows[i] for i in chosen], _gain(self._kept(step)))

    def _kept(self, step: tf.Tensor) -> tf.Tensor:
        done = tf.cast(step + (self.stride - 1), tf.float32)
        kept = tf.minimum(self._decay, (1.0 + done) / (10.0 + done))
        return kept if self.stride == 1 else tf.maximum(kept**self.stride, _LEAST_KEPT)


def _blend(shadow: tf.Variable, variable: tf.Variable, kept: tf.Tensor) -> None:
    """Sets shadow = kept shadow + (1 - kept) variable, with the kernels of other updates."""
    if "GPU" in shadow.device:
        tf.raw_ops.ResourceApplyGradientDescent(
            var=shadow.handle, alpha=1.0 - kept, delta=shadow - variable
        )
        return
    # A proximal step, (shadow - a variable) / (1 + a l2), needs no temporary of the variable's
    # size, which saves a third of the time. It has no GPU kernel.
    tf.raw_ops.ResourceApplyProximalGradientDescent(
        var=shadow.handle, alpha=-_gain(kept), l1=0.0, l2=-1.0, delta=variable.read_value()
    )


def _gain(kept: tf.Tensor) -> tf.Tensor:
    return (1.0 - kept) / kept
