"""A prefix code for small integers, most of which are zero: how codes travel between processes.

The reference of the kernels in cc/lib/prefix_code_impl.h, with the same bytes; docs/wire-format.md
shows them. A ternary code of a real gradient takes 0.4 to 1.3 bits instead of 2, because few codes
differ from zero. What would not be shorter travels as it is, so nothing takes more bytes than its
planes.

The code has streams of bits, each of whole 64-bit words: where integers differ from zero, their
signs, and then, for j = 1, 2, ..., whether those of magnitude j or more are larger than j. Where
they differ from zero is said in quads, of four neighbours: whether there is any, for those with
any whether there are several, for those with one its place, for those with several all four. Among
many integers that differ from zero, one bit for each of all takes less.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

LARGEST = 31  # magnitude of integers that travel so; the code of larger ones is long
_HEADER_BYTES = _STREAM_BYTES = 8
_IN_QUADS, _ONE_BIT_EACH = 0, 1  # the header: how it says where integers differ from zero
_POP_COUNT = np.array([bin(quad).count("1") for quad in range(16)], np.uint8)
_PLACE = np.array([max(quad.bit_length() - 1, 0) for quad in range(16)], np.uint8)
_PATTERN = np.array([[quad >> k & 1 for k in range(4)] for quad in range(16)], np.uint8)

Bits = np.ndarray  # uint8 [n], each 0 or 1


def pack(words: np.ndarray, largest: int) -> np.ndarray:
    """Packs integers in [-L, L].

    Args:
      words: uint32 [rows, k], their bit planes; see planes.py.
      largest: L; above LARGEST the result is the planes.

    Returns:
      uint8, at most the bytes of `words`.
    """
    raw = np.ascontiguousarray(words, "<u4").reshape(-1).view(np.uint8)
    if not 0 < largest <= LARGEST:
        return raw
    planes = _bits_of_planes(words)
    magnitude = _magnitudes(planes)
    at = magnitude > 0
    kind, where = _where(at.view(np.uint8))
    streams = [*where, planes[-1][at], *_levels(magnitude[at] if largest > 1 else [], largest)]
    header = np.frombuffer(kind.to_bytes(_HEADER_BYTES, "little"), np.uint8)
    packed = np.concatenate([header, *map(_stream, streams)])
    return packed if packed.nbytes < raw.nbytes else raw


def unpack(packed: np.ndarray, largest: int, rows: int, count: int) -> np.ndarray:
    """The inverse of `pack`: uint32 [rows, count].

    Args:
      packed: uint8. As many bytes as the planes have are the planes, whatever they are; fewer give
        integers in [-L, L].
      largest: L.
      rows: of the planes.
      count: planes.

    Raises:
      ValueError: `packed` has not the size that its streams and the rows need.
    """
    size = 4 * rows * count
    if packed.nbytes == size:
        return packed.view("<u4").reshape(rows, count)
    if packed.nbytes > size or not 0 < largest <= LARGEST:
        raise ValueError(f"packed has {packed.nbytes} bytes; allowed are up to {size}")
    reader = _Reader(packed)
    nonzero = _read_where(reader, rows)
    sign, magnitude = np.zeros_like(nonzero), nonzero.copy()
    at = np.flatnonzero(nonzero)
    sign[at] = reader.take(at.size)
    for _ in range(1, largest):
        at = at[reader.take(at.size) > 0]
        magnitude[at] += 1
    reader.finish()
    integers = magnitude if count == 2 else (magnitude ^ -sign) + sign  # in two's complement
    bits = [integers] if count == 2 else [integers >> k & 1 for k in range(count - 1)]
    planes = [np.packbits(plane, bitorder="little") for plane in [*bits, sign]]
    return np.stack([plane.view("<u4") for plane in planes], axis=1)


def _bits_of_planes(words: np.ndarray) -> list[Bits]:
    octets = [np.ascontiguousarray(plane, "<u4").view(np.uint8) for plane in words.T]
    return [np.unpackbits(plane, bitorder="little") for plane in octets]


def _magnitudes(planes: list[Bits]) -> np.ndarray:
    """Returns the magnitudes of integers: uint8."""
    *low, sign = planes
    if len(low) == 1:
        return low[0]
    integers = sum(plane << k for k, plane in enumerate(planes))
    return ((integers ^ -sign) + sign) & ((1 << len(low)) - 1)


def _levels(magnitudes: np.ndarray, largest: int) -> Iterator[Bits]:
    for j in range(1, largest):
        is_larger = magnitudes > j
        yield is_larger.view(np.uint8)
        magnitudes = magnitudes[is_larger]


def _where(nonzero: Bits) -> tuple[int, list[Bits]]:
    """Returns a header, and streams that say where integers differ from zero: the shorter way."""
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


def _read_where(reader: _Reader, rows: int) -> Bits:
    """The inverse: uint8 [32 rows]."""
    if reader.kind == _ONE_BIT_EACH:
        return reader.take(32 * rows).copy()
    is_filled = reader.take(8 * rows) > 0
    several = reader.take(np.count_nonzero(is_filled)) > 0
    places = reader.take(2 * np.count_nonzero(~several))
    some = np.empty((several.size, 4), np.uint8)
    some[~several] = _PATTERN[1 << (places[0::2] | places[1::2] << 1)]
    some[several] = reader.take(4 * np.count_nonzero(several)).reshape(-1, 4)
    quads = np.zeros((8 * rows, 4), np.uint8)
    quads[is_filled] = some
    return quads.reshape(-1)


def _stream_bytes(bits: int) -> int:
    return -(-bits // (8 * _STREAM_BYTES)) * _STREAM_BYTES


def _stream(bits: Bits) -> np.ndarray:
    octets = np.packbits(bits, bitorder="little")
    return np.pad(octets, (0, _stream_bytes(len(bits)) - octets.size))


class _Reader:
    """Takes the streams of a payload.

    Attributes:
      kind: how it says where integers differ from zero.
    """

    def __init__(self, packed: np.ndarray) -> None:
        self._left = packed
        self.kind = int.from_bytes(self._octets(_HEADER_BYTES).tobytes(), "little")
        if self.kind not in (_IN_QUADS, _ONE_BIT_EACH):
            raise ValueError(f"packed begins with {self.kind}; allowed are 0 and 1")

    def take(self, bits: int) -> Bits:
        """Returns the bits of the next stream."""
        return np.unpackbits(self._octets(_stream_bytes(bits)), bitorder="little")[:bits]

    def finish(self) -> None:
        """Raises ValueError if there is more."""
        if self._left.size:
            raise ValueError(f"packed has {self._left.size} bytes too many")

    def _octets(self, count: int) -> np.ndarray:
        if self._left.size < count:
            raise ValueError(f"packed lacks {count - self._left.size} bytes")
        taken, self._left = self._left[:count], self._left[count:]
        return taken
