"""All parameters of a net in one row, and the shard of the row that each ps holds.

The coded variables come first, bucket by bucket. Each bucket is padded to a multiple of 32, like
its codes. The float variables follow. The row is cut at multiples of 32 into one shard for each ps,
so that a ps gets whole words of codes. The lengths of the shards differ by at most 32 elements.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from terngrad.layout import Layout
from terngrad.parts import Parts
from terngrad.planes import GROUP, WORD_BYTES, padded, plane_count

_FLOAT_BYTES = 4


@dataclasses.dataclass(frozen=True)
class RowSegment:
    """The position of a variable in the row.

    Attributes:
      variable: its index in the layout.
      start: index of its first element in the row.
      size: number of its elements.
      parts: which of them share a scale; one part if they are not coded.
    """

    variable: int
    start: int
    size: int
    parts: Parts


@dataclasses.dataclass(frozen=True)
class RowLayout:
    """Where the variables are in the row.

    Attributes:
      segments: positions of all variables, in the order of the row.
      coded: number of elements in the coded part, which comes first.
      size: number of elements in the row.
    """

    segments: tuple[RowSegment, ...]
    coded: int
    size: int


def make_row_layout(layout: Layout) -> RowLayout:
    """Returns where the variables of a layout are in the row."""
    segments, end = [], 0
    for bucket in layout.buckets:
        for each in bucket.segments:
            segments.append(RowSegment(each.variable, end + each.offset, each.size, each.parts))
        end += padded(bucket.size)
    coded = end
    for variable in (v for variables in layout.float_buckets for v in variables):
        size = math.prod(layout.shapes[variable])
        segments.append(RowSegment(variable, end, size, Parts()))
        end += size
    return RowLayout(tuple(segments), coded, padded(end))


class Range(NamedTuple):
    """The elements of a variable that are on one ps, and the padding behind them.

    Attributes:
      variable: its index in the layout.
      size: number of these elements.
    """

    variable: int
    size: int


class CodedRange(NamedTuple):
    """The elements of a coded variable that are on one ps.

    Attributes:
      size: number of these elements, and of the padding behind them.
      scale: index, among all scales, of the first of `parts`.
      parts: which of them share a scale.
    """

    size: int
    scale: int
    parts: Parts


@dataclasses.dataclass(frozen=True)
class Shard:
    """The part of the row on one ps, which gets scales, words and floats of each gradient.

    Attributes:
      first: index of its first element in the row.
      size: number of its elements.
      coded: number of its coded elements, which come first.
      ranges: its elements, by variable.
      coded_ranges: its coded elements, by variable.
      largest: magnitude that a sum of codes may have.
      wire_bytes: bytes of a float in a gradient.
      statistics: number of moving statistics, which follow the parameters; 0 except on ps 0.
    """

    first: int
    size: int
    coded: int
    ranges: tuple[Range, ...]
    coded_ranges: tuple[CodedRange, ...]
    largest: int
    wire_bytes: int
    statistics: int

    @property
    def scales(self) -> int:
        """Number of its scales."""
        return sum(each.parts.count for each in self.coded_ranges)

    @property
    def words(self) -> int:
        """Number of uint32 words in the planes of its codes."""
        return self.coded // GROUP * plane_count(self.largest)

    @property
    def floats(self) -> int:
        """Number of elements that are not coded."""
        return self.size - self.coded

    @property
    def pushed_bytes(self) -> range:
        """Bytes that its part of a gradient may have; the most are those of the codes' planes."""
        floats = self.floats * self.wire_bytes + self.statistics * _FLOAT_BYTES
        rest = self.scales * _FLOAT_BYTES + floats
        return range(rest, rest + WORD_BYTES * self.words + 1)

    def pulled_bytes(self, pull_bits: int) -> int:
        """Returns the bytes of its parameters as a worker pulls them."""
        return self.size * pull_bits // 8 + self.statistics * _FLOAT_BYTES


def make_shards(
    layout: Layout, count: int, nodes: int, statistics: int, max_code: int = 1
) -> list[Shard]:
    """Returns the shards of `count` ps for sums of codes up to `max_code` over `nodes` nodes."""
    row_layout = make_row_layout(layout)
    groups = row_layout.size // GROUP
    edges = [GROUP * (groups * i // count) for i in range(count + 1)]
    coded = [segment for segment in row_layout.segments if segment.start < row_layout.coded]
    shards = []
    for ps, (first, end) in enumerate(itertools.pairwise(edges)):
        end_of_codes = max(first, min(end, row_layout.coded))
        shards.append(
            Shard(
                first,
                end - first,
                end_of_codes - first,
                tuple(
                    Range(segment.variable, until - begin)
                    for segment, begin, until in _cut(
                        row_layout.segments, row_layout.size, first, end
                    )
                ),
                _coded_ranges(coded, row_layout.coded, first, end_of_codes),
                nodes * max_code,
                layout.policy.float_type.itemsize,
                0 if ps else statistics,
            )
        )
    return shards


def _cut(
    segments: Sequence[RowSegment], end: int, first: int, last: int
) -> Iterator[tuple[RowSegment, int, int]]:
    """Yields the variables in [first, last), with the begin and the end of each there.

    Padding, whose values are 0, belongs to the variable before it.
    """
    starts = [segment.start for segment in segments] + [end]
    for segment, stop in zip(segments, starts[1:], strict=True):
        begin, until = max(segment.start, first), min(stop, last)
        if begin < until:
            yield segment, begin, until


def _coded_ranges(
    coded: Sequence[RowSegment], end: int, first: int, last: int
) -> tuple[CodedRange, ...]:
    """Returns the range of each coded variable in [first, last)."""
    counts = itertools.accumulate((segment.parts.count for segment in coded), initial=0)
    scale_of = dict(zip((segment.variable for segment in coded), counts, strict=False))
    return tuple(
        _coded_range(segment, scale_of[segment.variable], begin - segment.start, until - begin)
        for segment, begin, until in _cut(coded, end, first, last)
    )


def _coded_range(segment: RowSegment, scale: int, first: int, size: int) -> CodedRange:
    """Returns `size` elements from `first` on of a variable whose scales begin at `scale`."""
    parts = segment.parts
    if parts.block == 1:
        return CodedRange(size, scale, parts._replace(first=first % parts.count))
    low = min(first // parts.block, parts.count - 1)
    high = min(-(-(first + size) // parts.block), parts.count)
    return CodedRange(size, scale + low, Parts(parts.block, high - low, first - low * parts.block))
