"""TernGrad's arithmetic in plain TensorFlow: clip, scale, ternarize (paper, sections 3.1 to 3.3).

This is the reference: native kernels give the same codes bit for bit. Denormal values and
thresholds count as zero, because TensorFlow's threads flush them and other threads may not.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from terngrad.draws import DRAW_BITS

SMALLEST_NORMAL = 2.0**-126
SMALLEST_SCALE = 2.0**-100  # smaller scales count as zero: 2^24 / scale must stay finite
_SMALLEST_VARIANCE = 2.0**-20  # as a share of the mean square; float32 sums resolve no less


class Stats(NamedTuple):
    """The statistics of a gradient that encoding needs: float32 scalars, or vectors for several."""

    sum: tf.Tensor
    sum_of_squares: tf.Tensor
    max_abs: tf.Tensor


class Ternary(NamedTuple):
    """Codes -1, 0, +1 as two masks, bool, in the shape of the encoded values."""

    nonzero: tf.Tensor
    negative: tf.Tensor


def stats(gradient: tf.Tensor) -> Stats:
    """Returns sum, sum of squares and largest magnitude of a float32 tensor of any shape."""
    return Stats(
        tf.reduce_sum(gradient),
        tf.reduce_sum(gradient * gradient),
        tf.maximum(tf.reduce_max(tf.abs(gradient)), 0.0),  # 0 for an empty tensor
    )


def clip_bound(gradient_stats: Stats, count: int | tf.Tensor, clip_factor: float) -> tf.Tensor:
    """Returns the magnitude to clip to: clip_factor standard deviations (section 3.3).

    There is no bound if float32 sums cannot resolve the standard deviation: for a single value, for
    nearly equal values, or if squares underflow or overflow. A bound made of rounding errors would
    clip the gradient away.

    Args:
      gradient_stats: of one variable's gradient on this node, or vectors for several variables.
      count: number of elements of the variable, or float32 [v].
      clip_factor: 0 means no bound.

    Returns:
      float32, infinite where there is no bound.
    """
    if clip_factor == 0.0:
        return tf.fill(tf.shape(gradient_stats.sum), float("inf"))
    mean = gradient_stats.sum / count
    mean_square = gradient_stats.sum_of_squares / count
    variance = mean_square - mean * mean
    resolved = tf.math.is_finite(variance) & (variance > _SMALLEST_VARIANCE * mean_square)
    return tf.where(resolved, clip_factor * tf.sqrt(variance), float("inf"))


def local_scale(gradient_stats: Stats, bound: tf.Tensor) -> tf.Tensor:
    """Returns the largest magnitude after clipping: float32, infinite if a value is not finite.

    A NaN becomes an infinite scale, so that the maximum over the nodes cannot lose it.
    """
    # A maximum may lose a NaN, the sum does not. An infinite sum alone is only an overflow.
    finite = tf.math.is_finite(gradient_stats.max_abs) & ~tf.math.is_nan(gradient_stats.sum)
    scale = tf.minimum(gradient_stats.max_abs, bound)
    return tf.where(finite, scale, float("inf"))


def ternarize(values: tf.Tensor, bound: tf.Tensor, scale: tf.Tensor, random: tf.Tensor) -> Ternary:
    """Draws the code of each value: sign(v) with probability |clip(v)| / scale, else 0.

    A value is kept if random < |clip(v)| * (2^24 / scale), each operation rounded once to float32.

    Args:
      values: float32 [n], one node's gradient.
      bound: float32 scalar, the magnitude to clip to.
      scale: float32 scalar, at least the largest clipped magnitude; below 2^-100 it counts as 0.
      random: float32 [n], whole numbers in [0, 2^24).

    Returns:
      The codes; all are 0 if the scale counts as 0 or is not finite.
    """
    usable = (scale >= SMALLEST_SCALE) & tf.math.is_finite(scale)
    draws_per_unit = tf.where(usable, 2.0**DRAW_BITS / scale, 0.0)
    magnitude = tf.minimum(tf.abs(values), bound)
    threshold = magnitude * draws_per_unit
    accepted = threshold > tf.maximum(random, SMALLEST_NORMAL)
    nonzero = accepted & (magnitude >= SMALLEST_NORMAL)
    return Ternary(nonzero, nonzero & (values < 0.0))


def mean_scale(scale: tf.Tensor, nodes: tf.Tensor) -> tf.Tensor:
    """Returns the value of one unit in a sum of codes over `nodes` nodes: float32 like `scale`.

    `nodes` must be a tensor that the graph cannot fold: Grappler turns division by a constant into
    a product with the reciprocal, which rounds differently.
    """
    usable = tf.where(scale >= SMALLEST_SCALE, scale, 0.0)
    return usable / tf.cast(nodes, tf.float32)
