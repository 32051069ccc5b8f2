"""Ternary digits in base 3: five of them in eight bits, so 1.6 bits instead of 2.

The reference of the kernels in cc/lib/base3_impl.h, with the same bits: logic on whole words.

An integer in [-1, 1] is one digit, one in [-4, 4] is low + 3 high. The digits of five rows make
one number of eight bits, -1 counting as 2, whose bits lie in eight words. The five rows come from
five runs of up to 16 rows, so that kernels handle whole vectors. The last rows, fewer than five,
keep their planes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

_ROWS, _NUMBER_BITS, _LONGEST_RUN = 5, 8, 16
DIGIT_BITS = _NUMBER_BITS / _ROWS
# Bits of a number below 3^5 that are left before the digit of each power is taken off.
_POWERS = ((81, 8), (27, 7), (9, 5), (3, 4))

Words = np.ndarray  # uint32 of any shape: a bit of each of some integers
Digit = tuple[Words, Words]  # where it is not zero, and where it is negative


def packed_bytes(rows: int, digits: int) -> int:
    """Returns the bytes of rows of 32 integers of so many digits."""
    fives, rest = divmod(rows, _ROWS)
    return 4 * digits * (_NUMBER_BITS * fives + 2 * rest)


def pack(words: np.ndarray, digits: int) -> np.ndarray:
    """Packs integers of one or two digits.

    Args:
      words: uint32 [rows, 2 digits], their bit planes; see planes.py.
      digits: 1 or 2.

    Returns:
      uint32 [packed_bytes(rows, digits) / 4].
    """
    packed, end = [], 0
    for first, end, length in _blocks(len(words)):
        runs = words[first:end].reshape(-1, _ROWS, length, 2 * digits)
        rows = [_split([runs[:, j, :, k] for k in range(2 * digits)]) for j in range(_ROWS)]
        numbers = [_number([row[d] for row in rows]) for d in range(digits)]
        packed.append(np.stack([np.stack(each, axis=1) for each in numbers], axis=1).reshape(-1))
    return np.concatenate([*packed, words[end:].reshape(-1)])


def unpack(packed: np.ndarray, digits: int, rows: int) -> np.ndarray:
    """The inverse of `pack`: uint32 [rows, 2 digits].

    Numbers above 242, which `pack` does not write, give digits all the same.

    Raises:
      ValueError: `packed` has another size than that of so many rows.
    """
    if packed.nbytes != (allowed := packed_bytes(rows, digits)):
        raise ValueError(f"packed has {packed.nbytes} bytes; allowed are {allowed}")
    words, start, end = np.empty((rows, 2 * digits), np.uint32), 0, 0
    for first, end, length in _blocks(rows):
        runs = words[first:end].reshape(-1, _ROWS, length, 2 * digits)
        size = len(runs) * digits * _NUMBER_BITS * length
        numbers = packed[start : start + size].reshape(-1, digits, _NUMBER_BITS, length)
        start += size
        taken = [_digits([numbers[:, d, k] for k in range(_NUMBER_BITS)]) for d in range(digits)]
        for j in range(_ROWS):
            for k, plane in enumerate(_join([each[j] for each in taken])):
                runs[:, j, :, k] = plane
    words[end:] = packed[start:].reshape(-1, 2 * digits)
    return words


def _blocks(rows: int) -> Iterator[tuple[int, int, int]]:
    """Yields first row, end and length of five runs each, of one length."""
    whole = rows - rows % (_ROWS * _LONGEST_RUN)
    length = (rows - whole) // _ROWS
    if whole:
        yield 0, whole, _LONGEST_RUN
    if length:
        yield whole, whole + _ROWS * length, length


def _split(planes: Sequence[Words]) -> list[Digit]:
    """Splits integers into digits, the lowest first."""
    if len(planes) == 2:
        return [(planes[0], planes[1])]
    ones, twos, fours, sign = planes
    high = (sign & ~(twos & ones)) | (~sign & (twos | fours))
    low = ones ^ high
    negative = low & ((sign & ~(twos ^ ones)) | (~sign & twos))
    return [(low, negative), (high, sign & high)]


def _join(digits: Sequence[Digit]) -> Sequence[Words]:
    """The inverse."""
    if len(digits) == 1:
        return digits[0]
    (low, low_negative), (high, high_negative) = digits
    plus_1, plus_3 = low & ~low_negative, high & ~high_negative
    minus_1_alone = low_negative & ~high
    sign = high_negative | minus_1_alone
    twos = (plus_3 & ~plus_1) | minus_1_alone | (high_negative & plus_1)
    return low ^ high, twos, sign | (plus_3 & plus_1), sign


def _number(digits: Sequence[Digit]) -> list[Words]:
    """Returns the bits of the numbers that digits make; those of the first row are the lowest."""
    number = [np.zeros_like(digits[0][0])] * _NUMBER_BITS
    for nonzero, negative in reversed(digits):
        # number + (2 number + 1 if negative) + (1 if nonzero)
        carry, doubled = nonzero, negative
        for k, own in enumerate(number):
            differ = own ^ doubled
            number[k] = differ ^ carry
            carry, doubled = (own & doubled) | (differ & carry), own
    return number


def _digits(number: list[Words]) -> list[Digit]:
    """The inverse."""
    digits = []
    for power, bits in _POWERS:
        digits.append((_subtract(number, power, bits), _subtract(number, power, bits)))
    digits.append((number[0] | number[1], number[1]))
    return digits[::-1]


def _subtract(number: list[Words], power: int, bits: int) -> Words:
    """Subtracts a power where a number is at least that; returns where."""
    below = np.zeros_like(number[0])
    for k in range(bits):
        below = below | ~number[k] if power >> k & 1 else below & ~number[k]
    where = ~below
    borrow = np.zeros_like(where)
    for k in range(bits):
        own, taken = number[k], where if power >> k & 1 else 0
        number[k] = own ^ taken ^ borrow
        borrow = (~own & (taken | borrow)) | (taken & borrow)
    return where
