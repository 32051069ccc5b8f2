"""A code for integers of many magnitudes, in at most 0.1 bits more than their entropy.

The reference of the kernels in cc/lib/codes/block_code_impl.h, with the same bytes, which
docs/wire-format.md shows. Integers are coded in independent blocks of 16,384, because the variables
of a bucket differ in their spread. Values are the magnitudes of the integers. Where many integers
are 0, they have no value, and the values of the others are their magnitudes minus 1. The lowest k
bits of a value are nearly random, as are the bits far below its highest set bit. A block has these
streams, in the code of bit_code.py:

1. where many integers are 0: which are not;
2. the signs of the integers with a value;
3. the place of each value's highest set bit, in unary: for each bit j from bit k up, which of the
   values that were at least 2^(j-1) are at least 2^j;
4. of the values with the highest possible bit set: which are the largest possible, as clipped ones
   are;
5. for each bit from the second highest down to bit k: it, of the values with a higher bit set;
6. for each bit below k: it, of all values.

Streams 5 and 6 leave out values with the largest possible value. Stream 1 costs the most time
where values are small, that is, with k = 0. There it is coded only if that saves 7 % of its bits.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from terngrad import bit_code
from terngrad.bit_code import Octets

BLOCK = 1 << 14  # integers
_LEAVES_OUT_ZEROS = 0x80  # added to k in the first byte of a block
_FEW_NONZERO = 22  # of 64 integers, or few zeros: stream 1 is coded, with k = 0


def pack(integers: np.ndarray, largest: int) -> Octets:
    """Returns the code of int32 [n] in [-L, L]."""
    parts = [_write(integers[i : i + BLOCK], largest) for i in range(0, integers.size, BLOCK)]
    return np.concatenate(parts)


def unpack(reader: bit_code.Reader, largest: int, count: int) -> np.ndarray:
    """Takes the code of int32 [count]; raises ValueError if there is none."""
    parts = [_read(reader, largest, min(BLOCK, count - i)) for i in range(0, count, BLOCK)]
    return np.concatenate(parts)


def _write(integers: np.ndarray, largest: int) -> Octets:
    magnitudes = np.abs(integers)
    nonzero = magnitudes > 0
    zeros = nonzero.size - np.count_nonzero(nonzero)
    leaves_out = bool(32 * zeros >= nonzero.size)
    at = nonzero if leaves_out else np.ones_like(nonzero)
    limit, values = largest - leaves_out, magnitudes[at] - leaves_out
    k = _random_bits(values, limit)
    parts = [np.array([k + _LEAVES_OUT_ZEROS * leaves_out], np.uint8)]
    if leaves_out:
        max_ones = bit_code.FEW_ONES if k else _FEW_NONZERO
        parts.append(bit_code.write(nonzero.view(np.uint8), max_ones))
    streams = [integers[at] < 0, *_streams(values, limit, k)]
    return np.concatenate([*parts, *(bit_code.write(each.view(np.uint8)) for each in streams)])


def _random_bits(values: np.ndarray, limit: int) -> int:
    """Returns k: 2^k is the highest power of 2 up to the mean of the values."""
    mean = int(values.sum()) // max(values.size, 1)
    return max(min(mean.bit_length(), limit.bit_length()) - 1, 0)


def _streams(values: np.ndarray, limit: int, k: int) -> Iterator[np.ndarray]:
    """Returns streams 3 to 6: bool."""
    top = limit.bit_length()
    left = values
    for j in range(k, top):
        is_larger = left >> j > 0
        yield is_larger
        left = left[is_larger]
    if top:
        yield left == limit
        values = values[values != limit]
    for j in reversed(range(k, top - 1)):
        yield values[values >> (j + 1) > 0] >> j & 1 > 0
    for j in reversed(range(min(k, top))):
        yield values >> j & 1 > 0


def _read(reader: bit_code.Reader, largest: int, count: int) -> np.ndarray:
    first = int(reader.octets(1)[0])
    leaves_out, k = first >= _LEAVES_OUT_ZEROS, first & ~_LEAVES_OUT_ZEROS
    limit = largest - leaves_out
    if k >= max(limit.bit_length(), 1):
        raise ValueError(f"packed has a block that begins with {first}")
    at = reader.stream(count) > 0 if leaves_out else np.ones(count, bool)
    integers = np.zeros(count, np.int32)
    negative = reader.stream(np.count_nonzero(at)) > 0
    values = _read_values(reader, negative.size, limit, k)
    if np.any(values > limit):
        raise ValueError(f"packed has an integer above {largest}")
    integers[at] = np.where(negative, -1, 1) * (values + leaves_out)
    return integers


def _read_values(reader: bit_code.Reader, count: int, limit: int, k: int) -> np.ndarray:
    """Reads streams 3 to 6: int32 [count]."""
    values, top = np.zeros(count, np.int32), limit.bit_length()
    places = [np.arange(count)]  # of values of 2^j or more, for j = k, k + 1, ...
    for _ in range(k, top):
        places.append(places[-1][reader.stream(places[-1].size) > 0])
    is_max = np.zeros(count, bool)
    if top:
        is_max[places[-1]] = reader.stream(places[-1].size)
    for j, larger in enumerate(places[1:], k):
        values[larger] = 1 << j
    for j in reversed(range(k, top - 1)):
        some = places[j + 2 - k]
        some = some[~is_max[some]]
        values[some] |= reader.stream(some.size).astype(np.int32) << j
    others = np.flatnonzero(~is_max)
    for j in reversed(range(min(k, top))):
        values[others] |= reader.stream(others.size).astype(np.int32) << j
    values[is_max] = limit
    return values
