"""Updates of Keras' optimizers that a kernel makes in one pass over memory, with the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from terngrad.library.group import plain
from terngrad.ops.updates import Update


def has_momentum(optimizer: keras.optimizers.Optimizer) -> bool:
    """Returns whether an optimizer is Keras' own SGD with momentum."""
    return optimizer.__class__ is keras.optimizers.SGD and bool(optimizer.momentum)


def is_fused(optimizer: keras.optimizers.Optimizer) -> bool:
    """Returns whether `update_of` knows the rule of an optimizer: of a class of Keras itself."""
    if "update_step" in vars(optimizer):  # replaced by the program
        return False
    return has_momentum(optimizer) or _is_adam(optimizer)


def update_of(optimizer: keras.optimizers.Optimizer, rate: Any) -> Update:
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


def slots_of(
    optimizer: keras.optimizers.Optimizer, indices: Sequence[int]
) -> list[list[tf.Variable]]:
    """Returns, for each slot of the rule, those of the optimizer's variables with these indices."""
    if has_momentum(optimizer):
        slots = [optimizer.momentums]
    else:
        slots = [optimizer._momentums, optimizer._velocities]
    return [[plain(variables[i]) for i in indices] for variables in slots]


def _is_adam(optimizer: keras.optimizers.Optimizer) -> bool:
    # AdamW decays weights before its updates, which are Adam's.
    if optimizer.__class__ not in (keras.optimizers.Adam, keras.optimizers.AdamW):
        return False
    # With numbers of NumPy Keras computes in float64.
    settings = (optimizer.beta_1, optimizer.beta_2, optimizer.epsilon)
    return not optimizer.amsgrad and all(type(x) in (int, float) for x in settings)
