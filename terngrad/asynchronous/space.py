"""All parameters of a net in one row, and the shard of the row that each ps holds.

The coded variables come first, bucket by bucket. Each bucket is padded to a multiple of 32, like
its codes. The float variables follow. The row is cut at multiples of 32 into one shard for each ps,
so that a ps gets whole words of codes. The lengths of the shards differ by at most 32 elements.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

from terngrad.layout import Layout
from terngrad.planes import GROUP, padded, plane_count

_FLOAT_BYTES = 4


@dataclasses.dataclass(frozen=True)
class Place:
    """The position of a variable (by its index in the layout) in the row: `size` elements."""

    variable: int
    start: int
    size: int


@dataclasses.dataclass(frozen=True)
class Space:
    """The row.

    Attributes:
      places: places of all variables, in the order of the row.
      coded: number of elements in the coded part, which comes first.
      size: number of elements in the row.
    """

    places: tuple[Place, ...]
    coded: int
    size: int


def make_space(layout: Layout) -> Space:
    """Returns the row of a layout's variables."""
    places, end = [], 0
    for bucket in layout.buckets:
        places += [Place(s.variable, end + s.offset, s.size) for s in bucket.segments]
        end += padded(bucket.size)
    coded = end
    for variable in (v for variables in layout.float_buckets for v in variables):
        size = math.prod(layout.shapes[variable])
        places.append(Place(variable, end, size))
        end += size
    return Space(tuple(places), coded, padded(end))


@dataclasses.dataclass(frozen=True)
class Shard:
    """The part of the row on one ps, which gets scales, words and floats of each gradient.

    Attributes:
      first: index of its first element in the row.
      size: number of its elements.
      coded: number of its coded elements, which come first.
      scales: indices of its scales among all scales.
      lengths: number of its coded elements for each of these scales.
      planes: number of bit planes of its codes.
      wire_bytes: bytes of a float in a gradient.
      statistics: number of moving statistics, which follow the parameters; 0 except on ps 0.
    """

    first: int
    size: int
    coded: int
    scales: tuple[int, ...]
    lengths: tuple[int, ...]
    planes: int
    wire_bytes: int
    statistics: int

    @property
    def words(self) -> int:
        """Number of uint32 words of its codes."""
        return self.coded // GROUP * self.planes

    @property
    def floats(self) -> int:
        """Number of elements that are not coded."""
        return self.size - self.coded

    @property
    def pushed_bytes(self) -> int:
        """Bytes of its part of a gradient."""
        floats = self.floats * self.wire_bytes + self.statistics * _FLOAT_BYTES
        return len(self.scales) * _FLOAT_BYTES + 4 * self.words + floats

    def pulled_bytes(self, pull_bits: int) -> int:
        """Returns the bytes of its parameters as a worker pulls them."""
        return self.size * pull_bits // 8 + self.statistics * _FLOAT_BYTES


def make_shards(
    layout: Layout, count: int, nodes: int, statistics: int, max_code: int = 1
) -> list[Shard]:
    """Returns the shards of `count` ps for sums of codes up to `max_code` over `nodes` nodes."""
    space = make_space(layout)
    groups = space.size // GROUP
    edges = [GROUP * (groups * i // count) for i in range(count + 1)]
    coded = [place for place in space.places if place.start < space.coded]
    shards = []
    for ps, (first, end) in enumerate(itertools.pairwise(edges)):
        end_of_codes = max(first, min(end, space.coded))
        cut = _cut(coded, space.coded, first, end_of_codes)
        shards.append(
            Shard(
                first,
                end - first,
                end_of_codes - first,
                tuple(index for index, _ in cut),
                tuple(length for _, length in cut),
                plane_count(nodes * max_code),
                layout.policy.float_type.itemsize,
                0 if ps else statistics,
            )
        )
    return shards


def _cut(coded: list[Place], end: int, first: int, last: int) -> list[tuple[int, int]]:
    """Returns scale and length of each variable's part in [first, last).

    Padding, whose codes are 0, belongs to the variable before it.
    """
    starts = [place.start for place in coded] + [end]
    found = []
    for index, (start, stop) in enumerate(itertools.pairwise(starts)):
        length = min(stop, last) - max(start, first)
        if length > 0:
            found.append((index, length))
    return found
