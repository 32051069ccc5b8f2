"""All parameters of a net in one row, and the shard of it that each ps holds.

First come the coded variables, bucket by bucket, each bucket padded to a multiple of 32 as its
codes are; then those that stay float. Each ps holds as long a stretch of the row as any other, cut
at multiples of 32, so that what it gets of a gradient are whole words of codes.
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
    """Where a variable (by its index in the layout) lies in the row: `size` elements."""

    variable: int
    start: int
    size: int


@dataclasses.dataclass(frozen=True)
class Space:
    """The row.

    Attributes:
      places: of all variables, in the order of the row.
      coded: elements of the coded part, the first.
      size: elements of the row.
    """

    places: tuple[Place, ...]
    coded: int
    size: int


def make_space(layout: Layout) -> Space:
    """The row of a layout's variables."""
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
    """What one ps holds of the row, and what it gets of a gradient: scales, words, floats.

    Attributes:
      first: its first element in the row.
      size: its elements.
      coded: how many of them, the first, are coded.
      scales: indices, in the order of all scales, of those that belong to its codes.
      lengths: of its coded elements, as many as belong to each of these scales.
      planes: of its codes.
      wire_bytes: of a float of a gradient.
      statistics: floats that follow the parameters; only ps 0 has any.
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
        """Elements that are not coded."""
        return self.size - self.coded

    @property
    def pushed_bytes(self) -> int:
        """Bytes of its part of a gradient."""
        floats = self.floats * self.wire_bytes + self.statistics * _FLOAT_BYTES
        return len(self.scales) * _FLOAT_BYTES + 4 * self.words + floats

    def pulled_bytes(self, pull_bits: int) -> int:
        """Bytes of its parameters as a worker pulls them."""
        return self.size * pull_bits // 8 + self.statistics * _FLOAT_BYTES


def make_shards(
    layout: Layout, count: int, nodes: int, statistics: int, max_code: int = 1
) -> list[Shard]:
    """The shard of each of `count` ps; codes up to `max_code` come as sums over `nodes` nodes."""
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
    """Scale and length of what [first, last) has of each variable; padding belongs to the one
    before it, where its codes are 0.
    """
    starts = [place.start for place in coded] + [end]
    found = []
    for index, (start, stop) in enumerate(itertools.pairwise(starts)):
        length = min(stop, last) - max(start, first)
        if length > 0:
            found.append((index, length))
    return found
