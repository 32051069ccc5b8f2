"""TensorFlow 1's updates, with the kernels that TensorFlow still has for them.

The recipes need them, since Keras' optimizers differ: their momentum folds the learning rate into
the velocity, and their RMSProp starts its mean square at 0.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from terngrad.ops.gradient_kernels import Averages, GradientKernels, Sums, Update
from terngrad.training.slots import SLOTS


class Optimizer(abc.ABC):
    """Updates a fixed list of variables.

    Attributes:
      slots: by slot name, as in `SLOTS`, one tensor-like variable for each trained variable.
      starts: the initial value of each slot, by name.
      takes_sums: whether it also updates with means that are not decoded: `apply_sums`.
      depends_on_step: whether an update depends on the number of those before it.
    """

    depends_on_step = False

    def __init__(
        self,
        variables: Sequence[tf.Variable],
        slots: Mapping[str, float],
        kernels: GradientKernels | None,
    ) -> None:
        """Updates `variables`.

        Args:
          variables: weights.
          slots: the initial values of the slots.
          kernels: decode means and update with them; None = gradients come as means.
        """
        self._variables = variables
        self._kernels = kernels
        self.starts = dict(slots)
        self.slots = {name: _filled_like(variables, value) for name, value in slots.items()}
        has_kernels = kernels is not None and kernels.updates
        self.takes_sums = has_kernels and kernels.are_there(variables)

    def apply(
        self, gradients: Sequence[tf.Tensor | None], rate: tf.Tensor, step: tf.Tensor
    ) -> None:
        """Updates every variable.

        Args:
          gradients: in the order of the variables; None where `apply_sums` updates.
          rate: learning rate, float32 scalar.
          step: int64 scalar, number of updates before this one.
        """
        for gradient, variable, *slots in zip(
            gradients, self._variables, *self.slots.values(), strict=True
        ):
            if gradient is not None:
                handles = [slot.handle for slot in slots]
                self._apply_one(gradient, rate, step, variable.handle, *handles)

    def apply_sums(
        self, sums: Sums, rate: tf.Tensor, step: tf.Tensor, averages: Averages | None = None
    ) -> None:
        """Updates the variables of a bucket with its means, and their moving averages.

        On CPUs it gives the same bits as `apply` and `MovingAverages.update`.
        """
        chosen = lambda variables: [variables[i] for i in sums.variables]
        slots = [chosen(variables) for variables in self.slots.values()]
        update = self._update_of_sums(rate, step)
        self._kernels.apply_update(sums, chosen(self._variables), slots, update, averages)

    @abc.abstractmethod
    def _apply_one(
        self,
        gradient: tf.Tensor,
        rate: tf.Tensor,
        step: tf.Tensor,
        variable: tf.Tensor,
        *slots: tf.Tensor,
    ) -> None:
        """Updates one variable; of it and its slots it gets the handles."""

    def _update_of_sums(self, rate: tf.Tensor, step: tf.Tensor) -> Update:
        """Returns the rule of `apply_sums`."""
        raise NotImplementedError(f"{type(self).__name__} takes no sums")


class GradientDescent(Optimizer):
    """w -= rate g."""

    def __init__(self, variables: Sequence[tf.Variable]) -> None:
        """Updates `variables`."""
        super().__init__(variables, {}, None)

    def _apply_one(self, gradient, rate, step, variable) -> None:
        tf.raw_ops.ResourceApplyGradientDescent(var=variable, alpha=rate, delta=gradient)


class Momentum(Optimizer):
    """v = momentum v + g; w -= rate v, or with Nesterov's momentum w -= rate (g + momentum v)."""

    def __init__(
        self,
        variables: Sequence[tf.Variable],
        momentum: float,
        kernels: GradientKernels | None = None,
        *,
        nesterov: bool = False,
    ) -> None:
        """Updates `variables`; `momentum` is the share of the velocity that a step keeps."""
        super().__init__(variables, {"momentum": 0.0}, kernels)
        self._momentum, self._nesterov = momentum, nesterov
        self.takes_sums = self.takes_sums and not nesterov

    def _apply_one(self, gradient, rate, step, variable, velocity) -> None:
        tf.raw_ops.ResourceApplyMomentum(
            var=variable,
            accum=velocity,
            lr=rate,
            grad=gradient,
            momentum=self._momentum,
            use_nesterov=self._nesterov,
        )

    def _update_of_sums(self, rate: tf.Tensor, step: tf.Tensor) -> Update:
        return Update("momentum", rate, momentum=self._momentum)


class RMSProp(Optimizer):
    """ms = decay ms + (1 - decay) g^2; v = momentum v + rate g / sqrt(ms + epsilon); w -= v."""

    decay = 0.9
    epsilon = 1.0

    def __init__(
        self,
        variables: Sequence[tf.Variable],
        momentum: float,
        kernels: GradientKernels | None = None,
    ) -> None:
        """Updates `variables`; mean squares start at 1."""
        super().__init__(variables, {"mean_square": 1.0, "momentum": 0.0}, kernels)
        self._momentum = momentum

    def _apply_one(self, gradient, rate, step, variable, square, velocity) -> None:
        tf.raw_ops.ResourceApplyRMSProp(
            var=variable,
            ms=square,
            mom=velocity,
            lr=rate,
            rho=self.decay,
            momentum=self._momentum,
            epsilon=self.epsilon,
            grad=gradient,
        )

    def _update_of_sums(self, rate: tf.Tensor, step: tf.Tensor) -> Update:
        return Update(
            "rmsprop",
            rate,
            momentum=self._momentum,
            square_share=_rest(self.decay),
            epsilon=self.epsilon,
        )


class Adam(Optimizer):
    """Adam with TensorFlow 1's epsilon: w -= rate_t m / (sqrt(v) + 1e-8)."""

    depends_on_step = True
    beta1 = 0.9
    beta2 = 0.999
    epsilon = 1e-8

    def __init__(
        self, variables: Sequence[tf.Variable], kernels: GradientKernels | None = None
    ) -> None:
        """Updates `variables`."""
        super().__init__(variables, {"m": 0.0, "v": 0.0}, kernels)

    def _apply_one(self, gradient, rate, step, variable, m, v) -> None:
        beta1_power, beta2_power = self._powers(step)
        tf.raw_ops.ResourceApplyAdam(
            var=variable,
            m=m,
            v=v,
            beta1_power=beta1_power,
            beta2_power=beta2_power,
            lr=rate,
            beta1=self.beta1,
            beta2=self.beta2,
            epsilon=self.epsilon,
            grad=gradient,
        )

    def _update_of_sums(self, rate: tf.Tensor, step: tf.Tensor) -> Update:
        beta1_power, beta2_power = self._powers(step)
        return Update(
            "adam",
            rate * tf.sqrt(1.0 - beta2_power) / (1.0 - beta1_power),
            mean_share=_rest(self.beta1),
            square_share=_rest(self.beta2),
            epsilon=self.epsilon,
        )

    def _powers(self, step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        updates = tf.cast(step + 1, tf.float32)
        return self.beta1**updates, self.beta2**updates


def make_optimizer(
    name: str,
    variables: Sequence[tf.Variable],
    momentum: float,
    kernels: GradientKernels | None = None,
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
        "rmsprop": lambda: RMSProp(variables, momentum, kernels),
        "adam": lambda: Adam(variables, kernels),
    }
    return makers[name]()


def _rest(share: float) -> float:
    """Returns 1 - share as TensorFlow's kernels round it."""
    return float(np.float32(1) - np.float32(share))


def _filled_like(variables: Sequence[tf.Variable], value: float) -> list[tf.Variable]:
    return [tf.Variable(tf.fill(v.shape, value), trainable=False) for v in variables]
