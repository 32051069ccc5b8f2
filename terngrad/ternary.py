"""TernGrad's arithmetic in plain TensorFlow: clip, scale, draw (paper, sections 3.1 to 3.3).

The paper's codes are -1, 0 and 1. Codes of more levels, up to a largest code L, are drawn in the
same way: the two codes around a value share the probability, so that their mean is the value.

This is the reference: native kernels give the same codes bit for bit. Denormal values and
thresholds count as zero, because TensorFlow's threads flush them and other threads may not.
ENCODERS lists the ways in which values become codes that have a native kernel.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from terngrad.draws import DRAW_BITS
from terngrad.layout import FEEDBACK_CODES, MAX_CODES
from terngrad.parts import Parts

SMALLEST_NORMAL = 2.0**-126
SMALLEST_SCALE = 2.0**-100  # smaller values of a code of 1 count as 0: 2^24 / it stays finite
_SMALLEST_VARIANCE = 2.0**-20  # as a share of the mean square; float32 sums resolve no less


class Stats(NamedTuple):
    """The statistics of a gradient that encoding needs: float32 scalars, or vectors for several."""

    sum: tf.Tensor
    sum_of_squares: tf.Tensor
    max_abs: tf.Tensor


def stats(gradient: tf.Tensor) -> Stats:
    """Returns sum, sum of squares and largest magnitude of a float32 tensor of any shape."""
    return Stats(
        tf.reduce_sum(gradient),
        tf.reduce_sum(gradient * gradient),
        _largest(gradient),
    )


def _largest(values: tf.Tensor, axis: Sequence[int] | None = None) -> tf.Tensor:
    """Returns the largest magnitudes: 0 for an empty tensor, NaN where one is NaN.

    A maximum alone may lose a NaN.
    """
    largest = tf.maximum(tf.reduce_max(tf.abs(values), axis=axis), 0.0)
    has_nan = tf.reduce_any(tf.math.is_nan(values), axis=axis)
    return tf.where(has_nan, float("nan"), largest)


def stats_of_parts(gradient: tf.Tensor, parts: Parts) -> Stats:
    """Returns the statistics of each part of a float32 tensor of any shape: float32 [p].

    Those of a block do not depend on how many blocks there are, not even on whether it is the only
    one.
    """
    if parts.count == parts.block == 1:
        return Stats(*(tf.reshape(field, [1]) for field in stats(gradient)))
    size = math.prod(gradient.shape)
    cycle = parts.block * parts.count
    padded = tf.pad(tf.reshape(gradient, [-1]), [[0, -size % cycle]])
    values = tf.reshape(padded, [-1, parts.count, parts.block])
    wide = tf.cast(values, tf.float64)  # in float32 sums of many rows would lose digits
    sums = (tf.reduce_sum(power, axis=[0, 2]) for power in (wide, wide * wide))
    return Stats(
        *(tf.cast(each, tf.float32) for each in sums),
        _largest(values, axis=[0, 2]),
    )


def by_value(numbers: tf.Tensor, parts: Sequence[Parts], sizes: Sequence[int]) -> list[tf.Tensor]:
    """Returns, for each variable, the numbers of its values' parts.

    Args:
      numbers: [p], of the parts of all variables.
      parts: of each variable; () = each is one part.
      sizes: number of values of each variable.

    Returns:
      A scalar for a variable of one part, else [size].
    """
    if not parts:
        return tf.unstack(numbers, num=len(sizes))
    own = tf.split(numbers, [each.count for each in parts])
    return [_repeated(*each) for each in zip(own, parts, sizes, strict=True)]


def _repeated(numbers: tf.Tensor, parts: Parts, size: int) -> tf.Tensor:
    if parts.count == 1:
        return numbers[0]
    cycle = parts.block * parts.count
    first = parts.first % cycle
    one = tf.repeat(numbers, parts.block) if parts.block > 1 else numbers
    return tf.tile(one, [-(-(first + size) // cycle)])[first : first + size]


def clip_bound(
    gradient_stats: Stats, count: int | tf.Tensor, clip_factor: float, *, is_centred: bool = True
) -> tf.Tensor:
    """Returns the magnitude to clip to: clip_factor standard deviations (section 3.3).

    A whole variable's gradients mostly have both signs, so their mean is small. Those of one output
    channel may all have the sign of what the layer's output must change by, with a mean much larger
    than their deviation from it. So those of parts of variables are measured from 0 instead, by the
    root mean square.

    There is no bound if float32 sums cannot resolve the standard deviation: for a single value, for
    nearly equal values, or if squares underflow or overflow. A bound made of rounding errors would
    clip the gradient away.

    Args:
      gradient_stats: of one part of the gradients on this node, or vectors for several parts.
      count: number of values of the part, or float32 [p].
      clip_factor: 0 means no bound.
      is_centred: count in deviations from the mean; else in root mean squares.

    Returns:
      float32, infinite where there is no bound.
    """
    if clip_factor == 0.0:
        return tf.fill(tf.shape(gradient_stats.sum), float("inf"))
    if not is_centred:
        return _root_mean_squares(gradient_stats, count, clip_factor)
    mean = gradient_stats.sum / count
    mean_square = gradient_stats.sum_of_squares / count
    variance = mean_square - mean * mean
    resolved = tf.math.is_finite(variance) & (variance > _SMALLEST_VARIANCE * mean_square)
    return tf.where(resolved, clip_factor * tf.sqrt(variance), float("inf"))


def local_scale(gradient_stats: Stats, bound: tf.Tensor) -> tf.Tensor:
    """Returns the largest magnitude after clipping: float32, infinite if a value is not finite.

    A NaN becomes an infinite scale, so that the maximum over the nodes cannot lose it.
    """
    # Sums tell nothing: that of finite values may overflow, to both signs even, and become NaN.
    finite = tf.math.is_finite(gradient_stats.max_abs)
    scale = tf.minimum(gradient_stats.max_abs, bound)
    return tf.where(finite, scale, float("inf"))


def nearest_scale(
    gradient_stats: Stats, count: int | tf.Tensor, root_mean_squares: float
) -> tf.Tensor:
    """Returns the value of the largest code for rounding to the nearest level.

    It is a multiple of the root mean square, but at most the largest magnitude, so that values of
    only one magnitude are exact. Unlike the standard deviation, the root mean square also measures
    values whose mean is large.

    Args:
      gradient_stats: see `clip_bound`.
      count: see `clip_bound`.
      root_mean_squares: the multiple.

    Returns:
      float32; the largest magnitude where squares underflow or overflow; infinite if a value is not
      finite.
    """
    return local_scale(gradient_stats, _root_mean_squares(gradient_stats, count, root_mean_squares))


def _root_mean_squares(gradient_stats: Stats, count: int | tf.Tensor, multiple: float) -> tf.Tensor:
    """Returns a multiple of the root mean square, infinite where squares underflow or overflow."""
    mean_square = gradient_stats.sum_of_squares / count
    resolved = tf.math.is_finite(mean_square) & (mean_square >= SMALLEST_NORMAL)
    return tf.where(resolved, multiple * tf.sqrt(mean_square), float("inf"))


def unit(scale: tf.Tensor, max_code: int) -> tf.Tensor:
    """Returns the value of a code of 1, given that of the code `max_code`: float32 like `scale`."""
    # Grappler would turn a division by a constant into a product, which rounds differently.
    return scale if max_code == 1 else scale * np.float32(1.0 / max_code)


def draw_codes(
    values: tf.Tensor,
    bound: tf.Tensor,
    scale: tf.Tensor,
    random: tf.Tensor,
    max_code: int = 1,
) -> tf.Tensor:
    """Draws the code of each value, whose mean is clip(v) * max_code / scale.

    A value is worth t = min(|clip(v)| * (2^24 / unit), max_code * 2^24) draws. Its code has the
    sign of v and the magnitude t / 2^24, rounded up if random < t mod 2^24, else down. Each
    operation rounds once to float32. With max_code 1 the code is sign(v) with probability
    |clip(v)| / scale, else 0.

    Args:
      values: float32 [n], one node's gradient.
      bound: float32 scalar, the magnitude to clip to.
      scale: float32 scalar, at least the largest clipped magnitude.
      random: float32 [n], whole numbers in [0, 2^24).
      max_code: largest code, 1 to 127.

    Returns:
      float32 [n], whole numbers; all are 0 if the value of a code of 1 is below 2^-100 or not
      finite.
    """
    of_one = unit(scale, max_code)
    usable = (of_one >= SMALLEST_SCALE) & tf.math.is_finite(of_one)
    draws_per_unit = tf.where(usable, 2.0**DRAW_BITS / of_one, 0.0)
    magnitude = tf.minimum(tf.abs(values), bound)
    threshold = tf.minimum(magnitude * draws_per_unit, max_code * 2.0**DRAW_BITS)
    below = tf.floor(threshold * 2.0**-DRAW_BITS)
    rest = threshold - below * 2.0**DRAW_BITS
    code = below + tf.cast(rest > tf.maximum(random, SMALLEST_NORMAL), tf.float32)
    code = tf.where(magnitude >= SMALLEST_NORMAL, code, 0.0)
    return tf.where(values < 0.0, -code, code)


def _nearest_codes(
    values: tf.Tensor,
    bound: tf.Tensor,
    scale: tf.Tensor,
    random: tf.Tensor,
    max_code: int = 1,
) -> tf.Tensor:
    """Returns the codes of the levels next to the values.

    The magnitude of a code is the number of k from 1 to max_code for which
    |v| * (2^16 / unit) > (k - 1/2) 2^16. Each operation rounds once to float32.

    Args:
      values: float32 [n].
      bound: not used.
      scale: float32 scalar or [n], the value of the largest code.
      random: not used.
      max_code: largest code.

    Returns:
      float32 [n], whole numbers; all are 0 if the value of a code of 1 is below 2^-100 or not
      finite.
    """
    del bound, random
    of_one = unit(scale, max_code)
    usable = (of_one >= SMALLEST_SCALE) & tf.math.is_finite(of_one)
    levels = tf.abs(values) * tf.where(usable, 2.0**16 / of_one, 0.0)
    code = tf.zeros_like(values)
    for k in range(1, max_code + 1):
        code += tf.cast(levels > (k - 0.5) * 2.0**16, tf.float32)
    return tf.where(values < 0.0, -code, code)


def mean_scale(scale: tf.Tensor, nodes: tf.Tensor) -> tf.Tensor:
    """Returns the value of one unit in a sum of codes over `nodes` nodes: float32 like `scale`.

    `nodes` must be a tensor that the graph cannot fold: Grappler turns division by a constant into
    a product with the reciprocal, which rounds differently.
    """
    usable = tf.where(scale >= SMALLEST_SCALE, scale, 0.0)
    return usable / tf.cast(nodes, tf.float32)


class Encoder(NamedTuple):
    """Defines the codes that a kernel of `kEncodersOf` (cc/lib/encode_impl.h) writes.

    Attributes:
      max_code: largest magnitude of a code.
      encode: returns codes, float32 [n], given values float32 [n], the magnitude to clip to, the
        scale, and draws (see draws.py).
    """

    max_code: int
    encode: Callable[[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]


ENCODERS: Mapping[str, Encoder] = {
    name: Encoder(max_code, functools.partial(codes, max_code=max_code))
    for codes, names in ((draw_codes, MAX_CODES), (_nearest_codes, FEEDBACK_CODES))
    for name, max_code in names.items()
}
