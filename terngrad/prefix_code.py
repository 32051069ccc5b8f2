"""A prefix code for integers, most of which are small: how codes travel between processes.

The reference of the kernels in cc/lib/codes/prefix_code_impl.h, with the same bytes, which
docs/wire-format.md shows. A ternary code of a real gradient takes 0.4 to 1.3 bits instead of 2,
because few codes differ from zero. Planes that would not get shorter travel as they are.

Integers of several levels travel in blocks; see block_code.py. Ternary ones travel in a simpler
code, which is faster. It has streams of bits, each of whole 64-bit words. They give the places of
the integers that are not zero, then the signs of these. The places are coded by quads, four
neighbours each, in four streams: whether a quad has a nonzero integer; of those, whether it has
several; of quads with one, its place; of quads with several, all four bits. Where many integers are
not zero, one bit for each integer is shorter. Where hardly any integer or nearly all differ from
zero, blocks are much shorter, so ternary integers travel in them, too.
"""

from __future__ import annotations

import numpy as np

from terngrad import bit_code, block_code
from terngrad.bit_code import Bits, Octets
from terngrad.layout import MAX_SUM

_HEADER_BYTES = _STREAM_BYTES = 8
_IN_QUADS, _ONE_BIT_EACH, _IN_BLOCKS = 0, 1, 2  # the form of the code, in its header
_POP_COUNT = np.array([bin(quad).count("1") for quad in range(16)], np.uint8)
_PLACE = np.array([max(quad.bit_length() - 1, 0) for quad in range(16)], np.uint8)
_PATTERN = np.array([[quad >> k & 1 for k in range(4)] for quad in range(16)], np.uint8)


def pack(words: np.ndarray, largest: int) -> Octets:
    """Packs integers in [-L, L].

    Args:
      words: uint32 [rows, k], their bit planes; see planes.py.
      largest: L, at most MAX_SUM.

    Returns:
      uint8, at most the bytes of `words`.
    """
    raw = np.ascontiguousarray(words, "<u4").reshape(-1).view(np.uint8)
    integers = _integers(words)
    forms = [raw]
    if largest == 1:
        forms.append(_in_streams(integers))
    if integers.size and (largest > 1 or _may_blocks_be_shorter(forms[-1].nbytes, integers)):
        blocks = block_code.pack(integers, largest)
        forms.append(np.concatenate([_header(_IN_BLOCKS), blocks]))
    return min(forms, key=len)  # the first of those that are as short


def unpack(packed: Octets, largest: int, rows: int, count: int) -> np.ndarray:
    """The inverse of `pack`: uint32 [rows, count].

    Args:
      packed: uint8. As many bytes as the planes have are the planes, whatever they are; fewer give
        integers in [-L, L].
      largest: L.
      rows: of the planes.
      count: planes.

    Raises:
      ValueError: `packed` is no code of so many integers.
    """
    size = 4 * rows * count
    if packed.nbytes == size:
        return packed.view("<u4").reshape(rows, count)
    if packed.nbytes > size or not 0 < largest <= MAX_SUM:
        raise ValueError(f"packed has {packed.nbytes} bytes; allowed are up to {size}")
    reader = bit_code.Reader(packed)
    kind = int.from_bytes(reader.octets(_HEADER_BYTES).tobytes(), "little")
    least = _IN_QUADS if largest == 1 else _IN_BLOCKS
    if not least <= kind <= _IN_BLOCKS:
        raise ValueError(f"packed begins with {kind}; allowed are {least} to {_IN_BLOCKS}")
    if kind == _IN_BLOCKS:
        integers = block_code.unpack(reader, largest, 32 * rows)
    else:
        integers = _read_streams(reader, kind, rows)
    reader.finish()
    planes = [np.packbits(integers >> k & 1, bitorder="little") for k in range(count)]
    return np.stack([plane.view("<u4") for plane in planes], axis=1)


def _integers(words: np.ndarray) -> np.ndarray:
    """Returns the integers of bit planes: int32 [32 rows]."""
    octets = [np.ascontiguousarray(plane, "<u4").view(np.uint8) for plane in words.T]
    *low, sign = [np.unpackbits(plane, bitorder="little").astype(np.int32) for plane in octets]
    return sum((plane << k for k, plane in enumerate(low)), -sign << len(low))


def _header(kind: int) -> Octets:
    return np.frombuffer(kind.to_bytes(_HEADER_BYTES, "little"), np.uint8)


def _in_streams(integers: np.ndarray) -> Octets:
    at = integers != 0
    kind, streams = _nonzero_streams(at.view(np.uint8))
    return np.concatenate([_header(kind), *map(_stream, [*streams, (integers < 0)[at]])])


def _read_streams(reader: bit_code.Reader, kind: int, rows: int) -> np.ndarray:
    """The inverse: int32 [32 rows]."""
    integers = _read_nonzero(reader, kind, rows).astype(np.int32)
    at = np.flatnonzero(integers)
    integers[at] -= 2 * _take(reader, at.size).astype(np.int32)
    return integers


def _may_blocks_be_shorter(size: int, integers: np.ndarray) -> bool:
    """Whether blocks may save so much of `size` bytes that trying them is worth the time."""
    nonzero = np.count_nonzero(integers)
    information = nonzero + _entropy(integers.size, nonzero)
    return integers.size >= block_code.BLOCK and 8 * size > information + integers.size // 8


def _entropy(count: int, ones: int) -> int:
    """Returns about the bits that say which of `count` bits are 1."""
    return (_times_log(count) - _times_log(ones) - _times_log(count - ones)) >> 16


def _times_log(x: int) -> int:
    """Returns about 2^16 x log2(x), equal on all machines."""
    if not x:
        return 0
    exponent = int(x).bit_length() - 1
    fraction = (int(x) << 16 >> exponent) - 65536
    bend = fraction * (65536 - fraction) >> 16
    return int(x) * ((exponent << 16) + fraction + (88 * bend >> 8))


def _nonzero_streams(nonzero: Bits) -> tuple[int, list[Bits]]:
    """Returns the shorter form of `nonzero`, which says where integers are not 0: kind, streams."""
    octets = np.packbits(nonzero, bitorder="little")
    quads = np.stack([octets & 15, octets >> 4], axis=1).reshape(-1)
    is_filled = quads > 0
    filled = quads[is_filled]
    several = _POP_COUNT[filled] > 1
    place = _PLACE[filled[~several]]
    in_quads = [
        is_filled.view(np.uint8),
        several.view(np.uint8),
        np.stack([place & 1, place >> 1], axis=1).reshape(-1),
        _PATTERN[filled[several]].reshape(-1),
    ]
    if sum(map(_stream_bytes, map(len, in_quads))) <= _stream_bytes(len(nonzero)):
        return _IN_QUADS, in_quads
    return _ONE_BIT_EACH, [nonzero]


def _read_nonzero(reader: bit_code.Reader, kind: int, rows: int) -> Bits:
    """The inverse: uint8 [32 rows]."""
    if kind == _ONE_BIT_EACH:
        return _take(reader, 32 * rows)
    is_filled = _take(reader, 8 * rows) > 0
    several = _take(reader, np.count_nonzero(is_filled)) > 0
    places = _take(reader, 2 * np.count_nonzero(~several))
    some = np.empty((several.size, 4), np.uint8)
    some[~several] = _PATTERN[1 << (places[0::2] | places[1::2] << 1)]
    some[several] = _take(reader, 4 * np.count_nonzero(several)).reshape(-1, 4)
    quads = np.zeros((8 * rows, 4), np.uint8)
    quads[is_filled] = some
    return quads.reshape(-1)


def _stream_bytes(bits: int) -> int:
    return -(-bits // (8 * _STREAM_BYTES)) * _STREAM_BYTES


def _stream(bits: Bits) -> np.ndarray:
    octets = np.packbits(bits, bitorder="little")
    return np.pad(octets, (0, _stream_bytes(len(bits)) - octets.size))


def _take(reader: bit_code.Reader, bits: int) -> Bits:
    """Returns the bits of the next stream of whole words."""
    return np.unpackbits(reader.octets(_stream_bytes(bits)), bitorder="little")[:bits]
