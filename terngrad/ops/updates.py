"""Rules by which mean gradients change weights, and what they do in plain TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import tensorflow as tf

Rule = Literal["momentum", "keras_momentum", "nesterov", "adam", "rmsprop"]


class Update(NamedTuple):
    """How a mean gradient g changes a weight w and its slots; each operation rounds.

    - momentum: v = momentum v + g; w -= rate v
    - keras_momentum: v = momentum v - rate g; w += v
    - nesterov: v = momentum v - rate g; w += momentum v - rate g
    - adam, slots m and s: m += (g - m) mean_share; s += (g g - s) square_share;
      w -= m rate / (sqrt(s) + epsilon)
    - rmsprop, slots s and v: s += (g g - s) square_share;
      v = momentum v + g rate / sqrt(s + epsilon); w -= v

    Attributes:
      rule: its name.
      rate: learning rate, float32 scalar; for adam with the corrections of the bias.
      momentum: share of a velocity that is kept.
      mean_share: by which a mean moves, 1 - beta1.
      square_share: by which a mean square moves, 1 - beta2.
      epsilon: is added to divisors.
    """

    rule: Rule
    rate: tf.Tensor
    momentum: float = 0.0
    mean_share: float = 0.0
    square_share: float = 0.0
    epsilon: float = 0.0

    def apply(self, mean: tf.Tensor, weight: tf.Variable, slots: Sequence[tf.Variable]) -> None:
        """Changes a variable of float32 values and its slots."""
        if self.rule == "adam":
            self._apply_adam(mean, weight, *slots)
        elif self.rule == "rmsprop":
            self._apply_rmsprop(mean, weight, *slots)
        else:
            self._apply_momentum(mean, weight, *slots)

    def _apply_momentum(self, mean: tf.Tensor, weight: tf.Variable, velocity: tf.Variable) -> None:
        settings = {"lr": self.rate, "grad": mean, "momentum": self.momentum}
        settings |= {"var": weight.handle, "accum": velocity.handle}
        if self.rule == "momentum":
            tf.raw_ops.ResourceApplyMomentum(**settings)
        else:
            use_nesterov = self.rule == "nesterov"
            tf.raw_ops.ResourceApplyKerasMomentum(**settings, use_nesterov=use_nesterov)

    def _apply_adam(
        self, mean: tf.Tensor, weight: tf.Variable, average: tf.Variable, square: tf.Variable
    ) -> None:
        average.assign_add((mean - average) * self.mean_share)
        square.assign_add((tf.square(mean) - square) * self.square_share)
        weight.assign_sub(average * self.rate / (tf.sqrt(square) + self.epsilon))

    def _apply_rmsprop(
        self, mean: tf.Tensor, weight: tf.Variable, square: tf.Variable, velocity: tf.Variable
    ) -> None:
        square.assign_add((tf.square(mean) - square) * self.square_share)
        change = mean * self.rate / tf.sqrt(square + self.epsilon)
        velocity.assign(velocity * self.momentum + change)
        weight.assign_sub(velocity)
