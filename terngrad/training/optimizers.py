"""TensorFlow 1's updates, with the kernels that TensorFlow still has for them.

The recipes need them, since Keras' optimizers differ: their momentum folds the learning rate into
the velocity, and their RMSProp starts its mean square at 0.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence

import tensorflow as tf

from terngrad.ops.kernels import Kernels, Sums
from terngrad.training.slots import SLOTS


class Optimizer(abc.ABC):
    """Updates a fixed list of variables.

    Attributes:
      slots: by slot name, as in `SLOTS`, one tensor-like variable for each trained variable.
      takes_sums: whether it also updates with means that are not decoded: `apply_sums`.
    """

    slots: dict[str, list[tf.Variable]]
    takes_sums = False

    @abc.abstractmethod
    def apply(
        self, gradients: Sequence[tf.Tensor | None], rate: tf.Tensor, step: tf.Tensor
    ) -> None:
        """Updates every variable.

        Args:
          gradients: in the order of the variables; None where `apply_sums` updates.
          rate: learning rate, float32 scalar.
          step: int64 scalar, number of updates before this one.
        """

    def apply_sums(self, sums: Sums, rate: tf.Tensor) -> None:
        """Updates the variables of a bucket with its means."""
        raise NotImplementedError(f"{type(self).__name__} takes no sums")


class GradientDescent(Optimizer):
    """w -= rate g."""

    def __init__(self, variables: Sequence[tf.Variable]) -> None:
        """Updates `variables`."""
        self._variables = variables
        self.slots = {}

    def apply(self, gradients: Sequence[tf.Tensor], rate: tf.Tensor, step: tf.Tensor) -> None:
        """See base class."""
        del step
        for variable, gradient in zip(self._variables, gradients, strict=True):
            tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=gradient)


class Momentum(Optimizer):
    """v = momentum v + g; w -= rate v."""

    def __init__(
        self,
        variables: Sequence[tf.Variable],
        momentum: float,
        kernels: Kernels | None = None,
    ) -> None:
        """Updates `variables`.

        Args:
          variables: weights.
          momentum: share of the velocity that a step keeps.
          kernels: decode means and update with them; None = gradients come as means.
        """
        self._variables = variables
        self._momentum = momentum
        self._kernels = kernels
        self.slots = {"momentum": _filled_like(variables, 0.0)}
        self.takes_sums = kernels is not None

    def apply(
        self, gradients: Sequence[tf.Tensor | None], rate: tf.Tensor, step: tf.Tensor
    ) -> None:
        """See base class."""
        del step
        velocities = self.slots["momentum"]
        for variable, velocity, gradient in zip(
            self._variables, velocities, gradients, strict=True
        ):
            if gradient is not None:
                tf.raw_ops.ResourceApplyMomentum(
                    var=variable.handle,
                    accum=velocity.handle,
                    lr=rate,
                    grad=gradient,
                    momentum=self._momentum,
                )

    def apply_sums(self, sums: Sums, rate: tf.Tensor) -> None:
        """See base class."""
        chosen = lambda variables: [variables[i] for i in sums.variables]
        weights, velocities = chosen(self._variables), chosen(self.slots["momentum"])
        self._kernels.apply_momentum(sums, weights, velocities, rate, self._momentum)


class RMSProp(Optimizer):
    """ms = decay ms + (1 - decay) g^2; v = momentum v + rate g / sqrt(ms + epsilon); w -= v."""

    decay = 0.9
    epsilon = 1.0

    def __init__(self, variables: Sequence[tf.Variable], momentum: float) -> None:
        """Updates `variables`; mean squares start at 1."""
        self._variables = variables
        self._momentum = momentum
        self.slots = {
            "mean_square": _filled_like(variables, 1.0),
            "momentum": _filled_like(variables, 0.0),
        }

    def apply(self, gradients: Sequence[tf.Tensor], rate: tf.Tensor, step: tf.Tensor) -> None:
        """See base class."""
        del step
        slots = zip(self.slots["mean_square"], self.slots["momentum"], strict=True)
        for variable, (square, velocity), gradient in zip(
            self._variables, slots, gradients, strict=True
        ):
            tf.raw_ops.ResourceApplyRMSProp(
                var=variable.handle,
                ms=square.handle,
                mom=velocity.handle,
                lr=rate,
                rho=self.decay,
                momentum=self._momentum,
                epsilon=self.epsilon,
                grad=gradient,
            )


class Adam(Optimizer):
    """Adam with TensorFlow 1's epsilon: w -= rate_t m / (sqrt(v) + 1e-8)."""

    beta1 = 0.9
    beta2 = 0.999
    epsilon = 1e-8

    def __init__(self, variables: Sequence[tf.Variable]) -> None:
        """Updates `variables`."""
        self._variables = variables
        self.slots = {"m": _filled_like(variables, 0.0), "v": _filled_like(variables, 0.0)}

    def apply(self, gradients: Sequence[tf.Tensor], rate: tf.Tensor, step: tf.Tensor) -> None:
        """See base class."""
        updates = tf.cast(step + 1, tf.float32)
        beta1_power, beta2_power = self.beta1**updates, self.beta2**updates
        slots = zip(self.slots["m"], self.slots["v"], strict=True)
        for variable, (m, v), gradient in zip(self._variables, slots, gradients, strict=True):
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=m.handle,
                v=v.handle,
                beta1_power=beta1_power,
                beta2_power=beta2_power,
                lr=rate,
                beta1=self.beta1,
                beta2=self.beta2,
                epsilon=self.epsilon,
                grad=gradient,
            )


def make_optimizer(
    name: str,
    variables: Sequence[tf.Variable],
    momentum: float,
    kernels: Kernels | None = None,
) -> Optimizer:
    """Returns the optimizer that a flag names; `kernels` may decode what it updates with.

    Raises:
      ValueError: the name is unknown.
    """
    if name not in SLOTS:
        raise ValueError(f"optimizer is {name!r}; allowed are {', '.join(SLOTS)}.")
    makers: Mapping = {
        "gd": lambda: GradientDescent(variables),
        "momentum": lambda: Momentum(variables, momentum, kernels),
        "rmsprop": lambda: RMSProp(variables, momentum),
        "adam": lambda: Adam(variables),
    }
    return makers[name]()


def _filled_like(variables: Sequence[tf.Variable], value: float) -> list[tf.Variable]:
    return [tf.Variable(tf.fill(v.shape, value), trainable=False) for v in variables]
