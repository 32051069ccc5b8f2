"""Laws of the row of all parameters and of its shards."""

import math

import pytest

from terngrad.asynchronous.space import make_shards, make_space
from terngrad.layout import Policy, make_layout
from terngrad.planes import GROUP

NAMES = ["a/kernel", "a/bias", "b/kernel", "b/bias", "c/kernel"]
SHAPES = [(7, 9), (9,), (40, 3), (3,), (5, 5)]


def layout_of(bits=1, bucket_elements=64):
    policy = Policy(grad_bits=bits, float_layers=("c",) if bits == 1 else ())
    return make_layout(NAMES, SHAPES, policy, bucket_elements)


@pytest.mark.parametrize("bits", [1, 16, 32])
def test_each_variable_has_a_place_and_none_share_an_element(bits):
    space = make_space(layout_of(bits))
    taken = [e for p in space.places for e in range(p.start, p.start + p.size)]
    assert len(set(taken)) == len(taken) == sum(math.prod(shape) for shape in SHAPES)
    assert sorted(p.variable for p in space.places) == list(range(len(NAMES)))
    assert max(taken) < space.size and space.size % GROUP == space.coded % GROUP == 0


@pytest.mark.parametrize("bits", [1, 32])
@pytest.mark.parametrize("count", [1, 2, 3, 40])
def test_shares_cover_the_row_evenly_and_each_code_has_its_scale(bits, count):
    layout = layout_of(bits)
    space, shards = make_space(layout), make_shards(layout, count, 1, 7)
    assert sum(shard.size for shard in shards) == space.size
    assert sum(shard.coded for shard in shards) == space.coded
    assert max(s.size for s in shards) - min(s.size for s in shards) <= GROUP
    scale_of = {layout.coded.index(p.variable): p for p in space.places if p.start < space.coded}
    for shard in shards:
        assert sum(shard.lengths) == shard.coded
        element = shard.first
        for scale, length in zip(shard.scales, shard.lengths, strict=True):
            assert scale_of[scale].start <= element
            element += length
    assert [shard.statistics for shard in shards] == [7] + [0] * (count - 1)


def test_law_7_a_gradient_is_2_bits_a_code_4_bytes_a_scale_and_4_or_2_a_float():
    shard = make_shards(layout_of(1, 1 << 20), 1, 1, 0)[0]
    coded = 7 * 9 + 9 + 40 * 3 + 3
    assert shard.pushed_bytes == 4 * 4 + 8 * math.ceil(coded / 32) + 4 * shard.floats
    halves = make_shards(layout_of(16), 1, 1, 0)[0]
    assert halves.pushed_bytes == 2 * halves.size
    assert shard.pulled_bytes(32) == 4 * shard.size == 2 * shard.pulled_bytes(16)
