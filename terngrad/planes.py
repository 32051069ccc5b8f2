"""Bit planes: small integers of a bucket as uint32 words, and their exact sums.

A bucket of M elements (padded with zeros to a multiple of 32) is uint32 [M / 32, k]: bit i of word
[g, j] is bit j of element 32 g + i in two's complement. Ternary codes have k = 2 (plane 0:
nonzero, plane 1: negative). Codes up to C in magnitude have k = `plane_count(C)`, and their sums
over N nodes k = `plane_count(N C)`. Adding two buckets is carry logic on whole words, 32 elements
at a time.

Between processes codes may travel in fewer bits: see prefix_code.py.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

GROUP = 32  # elements in a word
WORD_BYTES = 4
# Values in a block of coded sums. A block has a scale, and the shares of the processes that code
# the sums are whole blocks.
SUM_BLOCK = 1024


def plane_count(largest: int) -> int:
    """Returns the number of planes of integers in [-L, L]: ceil(log2(2 L + 1)).

    Codes up to C in magnitude have L = C, and their sums over N nodes have L = N C.
    """
    return (2 * largest).bit_length()


def padded(elements: int) -> int:
    """Returns the number of elements of a bucket after padding."""
    return -(-elements // GROUP) * GROUP


def share_of(rows: int, processes: int, rank: int) -> tuple[int, int]:
    """Returns the first and the end of a bucket's groups of 32 values that a process owns.

    The shares of all processes, in their order, are whole blocks of `SUM_BLOCK` values, as equal as
    possible but for the last ones.
    """
    size = largest_share(rows, processes)
    return min(rank * size, rows), min((rank + 1) * size, rows)


def largest_share(rows: int, processes: int) -> int:
    """Returns the groups of 32 values in a full share; the last shares may have fewer."""
    block = SUM_BLOCK // GROUP
    return -(-rows // (processes * block)) * block


def pack(bits: tf.Tensor) -> tf.Tensor:
    """Packs one plane: bool [M], M a multiple of 32 -> uint32 [M / 32]."""
    # A float product with powers of two is exact below 2^24, and the fastest reduction.
    halves = tf.cast(tf.reshape(bits, [-1, GROUP]), tf.float32) @ _half_weights()
    return tf.bitcast(tf.cast(halves, tf.uint16), tf.uint32)


def pack_integers(values: tf.Tensor, count: int) -> tf.Tensor:
    """Packs integers that fit into `count` planes: float32 [M] -> uint32 [ceil(M / 32), count]."""
    elements = values.shape[0]
    integers = tf.cast(tf.pad(values, [[0, padded(elements) - elements]]), tf.int32)
    shifted = (tf.bitwise.right_shift(integers, tf.constant(j, tf.int32)) for j in range(count))
    return tf.stack([pack(tf.bitwise.bitwise_and(plane, 1) > 0) for plane in shifted], axis=1)


def unpack(words: tf.Tensor) -> tf.Tensor:
    """Unpacks planes into integers: uint32 [M / 32, k] -> float32 [M]."""
    planes = words.shape[1]
    octets = tf.cast(tf.bitcast(words, tf.uint8), tf.int32)  # [M / 32, k, 4], lowest byte first
    total = None
    for j in range(planes):
        weight = -(2.0**j) if j == planes - 1 else 2.0**j
        values = tf.gather(weight * _bits_of_octets(), octets[:, j])  # [M / 32, 4, 8]
        total = values if total is None else total + values
    return tf.reshape(total, [-1])


def add(left: tf.Tensor, right: tf.Tensor, planes: int) -> tf.Tensor:
    """Adds two buckets of any plane counts, modulo 2^planes: uint32 [M / 32, planes]."""
    lefts, rights = _sign_extended(left, planes), _sign_extended(right, planes)
    carry = tf.zeros_like(lefts[0])
    total = []
    for a, b in zip(lefts, rights, strict=True):
        differ = tf.bitwise.bitwise_xor(a, b)
        total.append(tf.bitwise.bitwise_xor(differ, carry))
        carry = tf.bitwise.bitwise_or(
            tf.bitwise.bitwise_and(a, b), tf.bitwise.bitwise_and(differ, carry)
        )
    return tf.stack(total, axis=1)


def add_all(words: Sequence[tf.Tensor], planes: int) -> tf.Tensor:
    """Adds buckets of any plane counts, modulo 2^planes: uint32 [M / 32, planes]."""
    zeros = tf.zeros([tf.shape(words[0])[0], planes], tf.uint32)
    return functools.reduce(lambda a, b: add(a, b, planes), words, zeros)


def count_nonzero(words: tf.Tensor, sizes: Sequence[int]) -> tf.Tensor:
    """Counts the integers that differ from zero in neighbouring segments, from the first one on.

    It takes 32 integers at a time, so none of its tensors has a number for each integer.

    Args:
      words: uint32 [M / 32, k].
      sizes: integers in each segment, fewer than 2^31, together M at most.

    Returns:
      int32 [len(sizes)].
    """
    if not sum(sizes):
        return tf.zeros([len(sizes)], tf.int32)
    ends = np.cumsum([0, *sizes])
    last = np.maximum(ends - 1, 0) // GROUP  # the word with the last integer before each end
    masks = ((1 << (ends - GROUP * last)) - 1).astype(np.uint32)
    nonzero = functools.reduce(tf.bitwise.bitwise_or, (words[:, j] for j in range(words.shape[1])))
    before = tf.cumsum(_count_bits(nonzero), exclusive=True)
    cut = tf.bitwise.bitwise_and(tf.gather(nonzero, last), masks)
    counts = tf.gather(before, last) + _count_bits(cut)
    return counts[1:] - counts[:-1]  # also where these are modulo 2^32


def fits(words: np.ndarray, elements: int, largest: int) -> bool:
    """Whether all values of received planes lie in [-largest, largest].

    Args:
      words: uint32 [M / 32, plane_count(largest)].
      elements: elements of the bucket before padding; the padding must be zero.
      largest: largest magnitude that a sum of codes may have.
    """
    *magnitude, sign = words.T
    excess = _compare(magnitude, largest)[0]
    shortfall = _compare(magnitude, (1 << len(magnitude)) - largest)[1]
    if np.any((sign & shortfall) | (~sign & excess)):
        return False
    last = elements % GROUP
    return not last or not np.any(words[-1] >> np.uint32(last))


def _compare(magnitude: Sequence[np.ndarray], limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns where unsigned planes (lowest first) are above, and where below, `limit`."""
    above = below = np.uint32(0)
    for j in reversed(range(len(magnitude))):
        undecided = ~(above | below)
        if limit >> j & 1:
            below = below | (undecided & ~magnitude[j])
        else:
            above = above | (undecided & magnitude[j])
    return above, below


def _count_bits(words: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.raw_ops.PopulationCount(x=words), tf.int32)


def _sign_extended(words: tf.Tensor, planes: int) -> Sequence[tf.Tensor]:
    given = tf.unstack(words, axis=1)
    return given[:planes] + [given[-1]] * (planes - len(given))


def _half_weights() -> np.ndarray:
    weights = np.zeros((GROUP, 2), np.float32)
    for i in range(GROUP):
        weights[i, i // 16] = 2.0 ** (i % 16)
    return weights


def _bits_of_octets() -> np.ndarray:
    return ((np.arange(256)[:, None] >> np.arange(8)) & 1).astype(np.float32)
