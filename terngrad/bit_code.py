"""A code for streams of bits that are mostly 0, or mostly 1.

The reference of the kernels in cc/lib/codes/bit_code_impl.h, with the same bytes, which
docs/wire-format.md shows. A stream takes little more than its entropy: at most 0.04 bits a bit, and
less than 0.03 where 6 % to 94 % of the bits are 1.

An empty stream takes no bytes. Any other begins with a byte that names its form. Eight bits are an
octet, and `CODES` are Huffman codes for octets: the fewer ones an octet has, the shorter its code
word. Where at least two thirds of the octets are 0, a stream within the stream comes first, which
marks the other octets, and only these follow. Many octets are coded in four parts, after the sizes
of the first three, so that a reader can decode all parts at the same time.
"""

from __future__ import annotations

import functools

import numpy as np

Bits = np.ndarray  # uint8 [n], each 0 or 1
Octets = np.ndarray  # uint8 [n]

# How many octets have a code word of 1, 2, ..., 11 bits: Huffman codes of octets whose bits are 1
# with a probability of 4, 9, 16 and 24 in 64, and of octets other than 0 with 2.5 in 64.
CODES = (
    (1, 0, 0, 1, 7, 0, 0, 28, 0, 5, 214),
    (0, 1, 0, 4, 4, 0, 28, 0, 22, 35, 162),
    (0, 0, 1, 0, 8, 9, 19, 56, 3, 68, 92),
    (0, 0, 0, 0, 1, 8, 28, 121, 61, 31, 6),
    (0, 0, 5, 3, 0, 0, 0, 13, 15, 0, 220),
)
_MAX_ONES = (7, 12, 19, 28)  # in 64 bits; with more ones the next code is shorter
FEW_ONES = _MAX_ONES[-1]  # with more ones no code is shorter than the bits themselves
_LONGEST = 11  # bits of a code word
_PARTS = 4
_DIVIDED = 128  # so many octets, or more, are coded in parts

# The first byte is one of these, or the number of a code in `CODES`, counted from 1.
_PLAIN = 0
_NO_ONES = 6
_IN_SPARSE = 8  # added to it where zero octets are left out
_INVERTED = 16  # added to it where all bits are inverted
_SPARSE_BITS = 64  # shorter streams do not leave out zero octets


class Reader:
    """Reads a payload from its start to its end."""

    def __init__(self, packed: Octets) -> None:
        self._left = packed

    def octets(self, count: int) -> Octets:
        """Returns the next octets; raises ValueError if there are fewer."""
        if self._left.size < count:
            raise ValueError(f"packed lacks {count - self._left.size} bytes")
        taken, self._left = self._left[:count], self._left[count:]
        return taken

    def finish(self) -> None:
        """Raises ValueError if there is more."""
        if self._left.size:
            raise ValueError(f"packed has {self._left.size} bytes too many")

    def stream(self, count: int) -> Bits:
        """Returns the next stream, of `count` bits; raises ValueError if there is none."""
        if not count:
            return np.zeros(0, np.uint8)
        mode = int(self.octets(1)[0])
        code, size = mode & 7, -(-count // 8)
        if mode >= 2 * _INVERTED or code > (len(CODES) if mode & _IN_SPARSE else _NO_ONES):
            raise ValueError(f"packed has a stream of the unknown kind {mode}")
        if mode & _IN_SPARSE and count < _SPARSE_BITS:  # bounds the recursion, too
            raise ValueError(f"packed has a stream of kind {mode} and only {count} bits")
        octets = np.zeros(size, np.uint8)
        if mode & _IN_SPARSE:
            filled = self.stream(size) > 0
            octets[filled] = self._coded(code, np.count_nonzero(filled))
        elif code != _NO_ONES:
            octets = self._coded(code, size)
        bits = np.unpackbits(octets, bitorder="little")[:count]
        return bits ^ 1 if mode & _INVERTED else bits

    def _coded(self, code: int, count: int) -> Octets:
        if code == _PLAIN:
            return self.octets(count)
        if count < _DIVIDED:
            return self._words(code, count)
        in_part = count // _PARTS
        sizes = self.octets(2 * (_PARTS - 1)).view("<u2")
        parts = [Reader(self.octets(int(size))) for size in sizes]
        found = [part._words(code, in_part) for part in parts]
        for part in parts:
            part.finish()
        return np.concatenate([*found, self._words(code, count - (_PARTS - 1) * in_part)])

    def _words(self, code: int, count: int) -> Octets:
        lengths, octets = _decoding(code)
        longest = self._left[: -(-count * _LONGEST // 8)]
        bits = np.pad(np.unpackbits(longest, bitorder="little"), (0, _LONGEST))
        windows = np.lib.stride_tricks.sliding_window_view(bits, _LONGEST)
        ahead = windows @ (1 << np.arange(_LONGEST, dtype=np.uint16))
        steps, place, places = lengths[ahead].tolist(), 0, []
        for _ in range(count):
            if place >= len(steps):
                raise ValueError("packed lacks code words")
            places.append(place)
            place += steps[place]
        self.octets(-(-place // 8))
        return octets[ahead[places]]


def write(bits: Bits, max_ones: int = FEW_ONES) -> Octets:
    """Returns the bytes of a stream: at most one more than its bits fill.

    The bits are not coded if more than `max_ones` of 64 are 1, and more than `max_ones` are 0.
    """
    if not bits.size:
        return np.zeros(0, np.uint8)
    ones = np.count_nonzero(bits)
    is_inverted = 2 * ones > bits.size
    octets = np.packbits(bits ^ is_inverted, bitorder="little")
    ones = min(ones, bits.size - ones)
    filled = octets > 0
    some = np.count_nonzero(filled)
    mode, parts = _NO_ONES, []
    if bits.size >= _SPARSE_BITS and some and 3 * some <= octets.size:
        code = len(CODES) if 4 * (ones - some) <= some else _shortest_code(ones, some)
        mode = _IN_SPARSE + code
        parts = [write(filled.view(np.uint8)), _coded(code, octets[filled])]
    elif ones:
        is_few = 8 * ones <= max_ones * octets.size
        mode = _shortest_code(ones, octets.size) if is_few else _PLAIN
        parts = [_coded(mode, octets)]
    if sum(part.size for part in parts) >= octets.size or mode == _PLAIN:
        mode, is_inverted, parts = _PLAIN, False, [np.packbits(bits, bitorder="little")]
    first = np.array([mode + _INVERTED * is_inverted], np.uint8)
    return np.concatenate([first, *parts])


def _shortest_code(ones: int, octets: int) -> int:
    """Returns the number of the code for octets with so many ones, or _PLAIN."""
    for i, limit in enumerate(_MAX_ONES):
        if 8 * ones <= limit * octets:
            return i + 1
    return _PLAIN


def _coded(code: int, octets: Octets) -> Octets:
    if code == _PLAIN:
        return octets
    if octets.size < _DIVIDED:
        return _words(code, octets)
    in_part = octets.size // _PARTS
    parts = [_words(code, part) for part in np.split(octets, in_part * np.arange(1, _PARTS))]
    sizes = np.array([part.size for part in parts[:-1]], "<u2")
    return np.concatenate([sizes.view(np.uint8), *parts])


def _words(code: int, octets: Octets) -> Octets:
    lengths, words = _encoding(code)
    is_used = np.arange(_LONGEST) < lengths[octets, None]
    return np.packbits(words[octets][is_used], bitorder="little")


@functools.cache
def _encoding(code: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns each octet's code word: its length int [256], and its bits uint8 [256, 11]."""
    # Octets with fewer ones come first, then smaller ones.
    zero_rank = 0 if code < len(CODES) else 9
    order = sorted(range(256), key=lambda octet: (octet.bit_count() or zero_rank, octet))
    lengths, words = np.zeros(256, int), np.zeros((256, _LONGEST), np.uint8)
    ordered = np.repeat(np.arange(1, _LONGEST + 1), CODES[code - 1])
    word = 0  # in a canonical code, words of one length count up; the highest bit comes first
    for octet, length, longer in zip(order, ordered, [*ordered[1:], _LONGEST], strict=True):
        lengths[octet] = length
        words[octet, :length] = [word >> i & 1 for i in reversed(range(length))]
        word = (word + 1) << (longer - length)
    return lengths, words


@functools.cache
def _decoding(code: int) -> tuple[np.ndarray, Octets]:
    """Returns the length of the word that any 11 bits begin with, and its octet."""
    lengths, words = _encoding(code)
    found = np.zeros((2, 1 << _LONGEST), int)
    for octet, length in enumerate(lengths):
        first = sum(int(bit) << i for i, bit in enumerate(words[octet]))
        found[:, first :: 1 << length] = [[length], [octet]]
    return found[0], found[1].astype(np.uint8)
