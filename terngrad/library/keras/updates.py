"""Updates of Keras' optimizers that a kernel makes in one pass over memory, with the same bits.

It decodes the mean gradients and updates, so that these means are never written to memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from terngrad.library.arrays import plain
from terngrad.library.keras.internals import adam_slots, is_patched, own_class, place_of
from terngrad.library.reducer import Reduced
from terngrad.ops.gradient_kernels import GradientKernels, Sums, Update


class PendingSums:
    """Holds the sums of an update between the exchange and Keras' call of the update."""

    def __init__(self) -> None:
        self._kernels: GradientKernels | None = None
        self._buckets: list[tuple[Sums, list[tf.Variable]]] = []  # with their variables

    def clear(self) -> None:
        """Drops the sums of an update that was not made."""
        self._buckets = []

    def can_apply(
        self,
        optimizer: keras.optimizers.Optimizer,
        weights: Sequence[tf.Variable],
        kernels: GradientKernels,
    ) -> bool:
        """Returns whether the optimizer's next update may be made with sums in place of means."""
        self._kernels = kernels
        is_once = len({weight.ref() for weight in weights}) == len(weights)
        return kernels.updates and is_once and is_fused(optimizer) and _keeps_means(optimizer)

    def add(self, found: Reduced, weights: Sequence[tf.Variable]) -> None:
        """Keeps the sums that the kernel can apply.

        Args:
          found: the exchanged gradients.
          weights: their variables.
        """
        for sums in found.sums:
            own = [weights[i] for i in sums.variables]
            types = {found.means[i].dtype for i in sums.variables} | {w.dtype for w in own}
            if types == {tf.float32} and self._kernels.are_there(own):
                self._buckets.append((sums, own))

    def apply(self, optimizer: keras.optimizers.Optimizer, rate: Any) -> set:
        """Updates with the sums; returns the references of their variables."""
        buckets, self._buckets = self._buckets, []
        update = _update_of(optimizer, rate) if buckets else None
        for sums, weights in buckets:
            slots = _slots_of(optimizer, [place_of(optimizer, weight) for weight in weights])
            self._kernels.apply_update(sums, weights, slots, update)
        return {weight.ref() for _, weights in buckets for weight in weights}


def is_float_on_cpu(variable: Any) -> bool:
    """Returns whether a kernel of TensorFlow rounds as single operations do."""
    return variable.dtype == tf.float32 and "GPU" not in variable.device


def has_momentum(optimizer: keras.optimizers.Optimizer) -> bool:
    """Returns whether an optimizer is Keras' own SGD with momentum."""
    return own_class(optimizer) is keras.optimizers.SGD and bool(optimizer.momentum)


def is_fused(optimizer: keras.optimizers.Optimizer) -> bool:
    """Returns whether `_update_of` knows the rule of an optimizer: of a class of Keras itself."""
    return not is_patched(optimizer) and (has_momentum(optimizer) or _is_adam(optimizer))


def _keeps_means(optimizer: keras.optimizers.Optimizer) -> bool:
    """Returns whether an optimizer that `is_fused` applies the exchanged gradients as they are."""
    clips = (optimizer.clipnorm, optimizer.global_clipnorm, optimizer.clipvalue)
    # Accumulated gradients are divided by the scale before the exchange.
    is_scaled = optimizer.loss_scale_factor and not optimizer.gradient_accumulation_steps
    return not is_scaled and all(each is None for each in clips)


def _update_of(optimizer: keras.optimizers.Optimizer, rate: Any) -> Update:
    """Returns the rule of the next update of an optimizer that `is_fused`, at this learning rate.

    It is to be used before the optimizer counts the update.
    """
    rate = keras.ops.cast(rate, "float32")
    if has_momentum(optimizer):
        rule = "nesterov" if optimizer.nesterov else "keras_momentum"
        return Update(rule, rate, momentum=optimizer.momentum)
    updates = keras.ops.cast(optimizer.iterations + 1, "float32")
    power1, power2 = (
        keras.ops.power(keras.ops.cast(beta, "float32"), updates)
        for beta in (optimizer.beta_1, optimizer.beta_2)
    )
    return Update(
        "adam",
        rate * keras.ops.sqrt(1 - power2) / (1 - power1),
        mean_share=1 - optimizer.beta_1,
        square_share=1 - optimizer.beta_2,
        epsilon=optimizer.epsilon,
    )


def _slots_of(
    optimizer: keras.optimizers.Optimizer, indices: Sequence[int]
) -> list[list[tf.Variable]]:
    """Returns, for each slot of the rule, those of the optimizer's variables with these indices."""
    slots = [optimizer.momentums] if has_momentum(optimizer) else adam_slots(optimizer)
    return [[plain(variables[i]) for i in indices] for variables in slots]


def _is_adam(optimizer: keras.optimizers.Optimizer) -> bool:
    # AdamW decays weights before its updates, which are Adam's.
    if own_class(optimizer) not in (keras.optimizers.Adam, keras.optimizers.AdamW):
        return False
    # With numbers of NumPy Keras computes in float64.
    settings = (optimizer.beta_1, optimizer.beta_2, optimizer.epsilon)
    return not optimizer.amsgrad and all(type(x) in (int, float) for x in settings)
