"""Rules by which mean gradients change weights."""

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
      mean_share: by which a mean moves, 1 - beta1. TensorFlow's kernels take the difference of the
        float32 numbers, Keras rounds the exact one.
      square_share: by which a mean square moves, 1 - beta2.
      epsilon: is added to divisors.
    """

    rule: Rule
    rate: tf.Tensor
    momentum: float = 0.0
    mean_share: float = 0.0
    square_share: float = 0.0
    epsilon: float = 0.0


class Averages(NamedTuple):
    """Moving averages of weights: each becomes (average + gain weight) / (1 + gain).

    Attributes:
      shadows: the averages, in the order and shapes of the weights.
      gain: float32 scalar.
    """

    shadows: Sequence[tf.Variable]
    gain: tf.Tensor
