"""Random draws for codes: one 24-bit integer per value, from a counter-based generator.

A draw depends only on (seed, step, node, variable, element), never on threads, buckets or machine.
The layout of halves and bytes in the Philox blocks lets 16 vector lanes draw without a
transposition; every implementation must follow it.

Draws of two nodes are independent, or antithetic: nodes 2 k and 2 k + 1 share a draw r, one uses r
where the other uses 2^24 - 1 - r. Each node's draws are still uniform, but where one rounds up, the
other tends to round down, so the mean of both has less noise.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from terngrad.layout import MAX_VARIABLES

DRAW_BITS = 24

_PHILOX = 1
_BLOCKS = 16  # consecutive Philox blocks for one group of values
_WORDS = 4  # 32-bit words in a block
_LOW_BYTES_FROM_BLOCK = 1 << 63


@dataclasses.dataclass(frozen=True)
class DrawKey:
    """Identifies the stream of draws of one node at one step.

    Attributes:
      seed: uint64 scalar tensor.
      step: integer scalar tensor; only its low 32 bits are used.
      node: integer scalar tensor, the node's global index, below `layout.MAX_NODES`.
      antithetic: whether nodes 2 k and 2 k + 1 share draws in `draws_for`.
    """

    seed: tf.Tensor
    step: tf.Tensor
    node: tf.Tensor
    antithetic: bool = False


def draws_for(key: DrawKey, variable: int, values: tf.Tensor) -> tf.Tensor:
    """Returns the draws that round a variable's values, independent or antithetic as the key says.

    Antithetic draws lower the noise of a pair's mean where a value's magnitude is rounded up if its
    draw is below some number.

    Args:
      key: the node's stream.
      variable: index in the layout.
      values: float32 [n], all values of the variable on this node.

    Returns:
      float32 [n], whole numbers in [0, 2^24): of an antithetic key 2^24 - 1 less the pair's draw
      where the node is odd or the value negative, but not both.
    """
    count = values.shape[0]
    if not key.antithetic:
        return draws(key, variable, count)
    shared = draws(dataclasses.replace(key, node=key.node // 2), variable, count)
    is_odd = tf.equal(key.node % 2, 1)
    complemented = tf.math.logical_xor(values < 0.0, is_odd)
    return tf.where(complemented, 2.0**DRAW_BITS - 1.0 - shared, shared)


def draws(key: DrawKey, variable: int, count: int, first: int = 0) -> tf.Tensor:
    """Returns the draws of a variable's elements: float32 [count], whole numbers in [0, 2^24).

    They are independent between nodes, whatever the key says.

    Args:
      key: the node's stream.
      variable: index in the layout.
      count: number of elements.
      first: index of the first element in the variable.
    """
    # Upper 16 bits: value e of 128 takes half (e // 16) % 2 of word e // 32 of block e % 16.
    high = _bits(key, variable, count, first, group=128, from_block=0)
    # Lower 8 bits: value e of 256 takes byte (e // 16) % 4 of word e // 64 of block e % 16.
    low = _bits(key, variable, count, first, group=256, from_block=_LOW_BYTES_FROM_BLOCK)
    return tf.cast(high * 256 + low, tf.float32)


def _bits(
    key: DrawKey, variable: int, count: int, first: int, group: int, from_block: int
) -> tf.Tensor:
    """Returns draws that need `_BLOCKS` blocks per `group` values: int32 [count]."""
    first_group, skipped = divmod(first, group)
    groups = -(-(skipped + count) // group)
    words = _words(key, variable, groups, from_block + first_group * _BLOCKS)
    return _parts(words, _BLOCKS * _WORDS * 32 // group)[skipped : skipped + count]


def _parts(words: tf.Tensor, bits: int) -> tf.Tensor:
    """Splits uint32 [groups, blocks, words]: int32 [n] by group, word, part (low first), block."""
    # Not tf.transpose: oneDNN logs to stderr when it leaves a transposition of integers to Eigen.
    mask = tf.constant((1 << bits) - 1, tf.uint32)
    parts = [
        tf.bitwise.bitwise_and(tf.bitwise.right_shift(word, tf.constant(shift, tf.uint32)), mask)
        for word in tf.unstack(words, axis=2)
        for shift in range(0, 32, bits)
    ]
    return tf.reshape(tf.cast(tf.stack(parts, axis=1), tf.int32), [-1])


def _words(key: DrawKey, variable: int, groups: int, first_block: int) -> tf.Tensor:
    """Returns Philox words: uint32 [groups, blocks, words]."""
    if not 0 <= variable < MAX_VARIABLES:
        raise ValueError(f"variable index is {variable}; allowed are 0 to {MAX_VARIABLES - 1}.")
    # The counter is four 32-bit words: block low, block high, step, node << 16 | variable.
    stream = tf.cast(key.node, tf.uint32) * (1 << 16) + variable
    stream = tf.bitcast(tf.stack([tf.cast(key.step, tf.uint32), stream]), tf.uint64)
    words = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[groups * _BLOCKS * _WORDS],
        key=tf.reshape(key.seed, [1]),
        counter=tf.stack([tf.constant(first_block, tf.uint64), stream]),
        alg=_PHILOX,
        dtype=tf.uint32,
    )
    return tf.reshape(words, [groups, _BLOCKS, _WORDS])
