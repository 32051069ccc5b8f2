"""Laws of the row of all parameters and of its shards."""

import math

import pytest

from terngrad.asynchronous.messages import exactly
from terngrad.asynchronous.row import make_row_layout, make_shards
from terngrad.layout import Policy, make_layout
from terngrad.planes import GROUP

NAMES = ["a/kernel", "a/bias", "b/kernel", "b/bias", "c/kernel"]
SHAPES = [(7, 9), (9,), (40, 3), (3,), (5, 5)]


def layout_of(bits=1, bucket_elements=64, scale_by="variable", shapes=SHAPES):
    policy = Policy(grad_bits=bits, float_layers=("c",) if bits == 1 else (), scale_by=scale_by)
    return make_layout(NAMES, shapes, policy, bucket_elements)


@pytest.mark.parametrize("bits", [1, 16, 32])
def test_each_variable_has_a_place_and_none_share_an_element(bits):
    row_layout = make_row_layout(layout_of(bits))
    taken = [e for p in row_layout.segments for e in range(p.start, p.start + p.size)]
    assert len(set(taken)) == len(taken) == sum(math.prod(shape) for shape in SHAPES)
    assert sorted(p.variable for p in row_layout.segments) == list(range(len(NAMES)))
    assert max(taken) < row_layout.size and row_layout.size % GROUP == row_layout.coded % GROUP == 0


@pytest.mark.parametrize("bits", [1, 32])
@pytest.mark.parametrize("count", [1, 2, 3, 40])
def test_shards_cover_the_row_evenly_and_each_code_has_its_scale(bits, count):
    layout = layout_of(bits)
    row_layout, shards = make_row_layout(layout), make_shards(layout, count, 1, 7)
    assert sum(shard.size for shard in shards) == row_layout.size
    assert sum(shard.coded for shard in shards) == row_layout.coded
    assert max(s.size for s in shards) - min(s.size for s in shards) <= GROUP
    scale_of = {
        layout.coded.index(p.variable): p for p in row_layout.segments if p.start < row_layout.coded
    }
    for shard in shards:
        assert sum(each.size for each in shard.coded_ranges) == shard.coded
        element = shard.first
        for each in shard.coded_ranges:
            assert scale_of[each.scale].start <= element
            element += each.size
    assert [shard.statistics for shard in shards] == [7] + [0] * (count - 1)


@pytest.mark.parametrize("scale_by", ["variable", "channel", "block:128"])
@pytest.mark.parametrize("count", [1, 2, 3, 17])
def test_each_code_has_the_scale_of_its_part_wherever_the_row_is_cut(scale_by, count):
    layout = layout_of(1, 700, scale_by, [(7, 9), (9,), (40, 13), (3,), (5, 5)])
    row_layout = make_row_layout(layout)
    expected = {}  # by element of the row
    scale = 0
    for segment in row_layout.segments:
        if segment.start < row_layout.coded:
            for e in range(segment.size):
                part = e // segment.parts.block % segment.parts.count
                expected[segment.start + e] = scale + part
            scale += segment.parts.count
    assert scale == len(layout.scaled)
    assert (scale > len(layout.coded)) == (scale_by != "variable")
    found = {}
    for shard in make_shards(layout, count, 1, 0):
        element = shard.first
        for size, first, parts in shard.coded_ranges:
            for e in range(size):
                part = (parts.first + e) // parts.block % parts.count
                found[element + e] = first + part
            element += size
        limit = 4 * (shard.scales + shard.words + shard.floats)
        assert shard.pushed_bytes == range(limit - 4 * shard.words, limit + 1)
    assert {e: found[e] for e in expected} == expected


def test_law_7_a_gradient_is_up_to_2_bits_a_code_4_bytes_a_scale_4_or_2_a_float():
    shard = make_shards(layout_of(1, 1 << 20), 1, 1, 0)[0]
    coded = 7 * 9 + 9 + 40 * 3 + 3
    assert shard.pushed_bytes[-1] == 4 * 4 + 8 * math.ceil(coded / 32) + 4 * shard.floats
    halves = make_shards(layout_of(16), 1, 1, 0)[0]
    assert halves.pushed_bytes == exactly(2 * halves.size)
    assert shard.pulled_bytes(32) == 4 * shard.size == 2 * shard.pulled_bytes(16)
