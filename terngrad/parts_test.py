"""Laws of parts: each value is in one part, and few values have no scale of their own."""

import collections
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terngrad.parts import Parts, is_known, parts_of


@given(st.integers(0, 2000), st.integers(1, 300), st.integers(1, 40))
def test_sizes_count_the_values_of_each_part(size, block, count):
    parts = Parts(block, count)
    found = collections.Counter(e // block % count for e in range(size))
    assert parts.sizes(size) == [found[i] for i in range(count)]


@pytest.mark.parametrize(
    ("shape", "scale_by", "parts"),
    [
        ((3, 3, 64, 128), "variable", Parts()),
        ((3, 3, 64, 128), "channel", Parts(1, 128)),  # HWIO: the outputs
        ((400, 10), "channel", Parts(1, 10)),
        ((3, 3, 512, 1), "channel", Parts()),  # depthwise: the last axis is the multiplier
        ((3, 3, 1, 64), "channel", Parts()),  # 9 values in each channel
        ((4, 4, 1, 64), "channel", Parts(1, 64)),  # 16
        ((5, 1), "channel", Parts()),
        ((1000,), "channel", Parts()),
        ((), "channel", Parts()),
        ((0, 7), "channel", Parts()),
        ((7, 0), "channel", Parts()),
        ((10, 100), "block:256", Parts(256, 4)),
        ((1024,), "block:256", Parts(256, 4)),
        ((1025,), "block:256", Parts(256, 5)),
        ((256,), "block:256", Parts()),
        ((10,), "block:256", Parts()),
        ((0,), "block:256", Parts()),
    ],
)
def test_parts_are_channels_or_blocks_unless_these_have_few_values(shape, scale_by, parts):
    assert parts_of(shape, scale_by) == parts
    assert sum(parts.sizes(math.prod(shape))) == math.prod(shape)


@pytest.mark.parametrize(
    ("scale_by", "known"),
    [
        *((each, True) for each in ("variable", "channel", "block:128", "block:1280")),
        *((each, False) for each in ("", "block", "block:", "block:0", "block:-128", "block:127")),
        *((each, False) for each in ("block:0128", "block: 128", "block:1e3", "Channel", "row")),
        ("block:" + "128" * 9, False),
    ],
)
def test_law_10_only_variables_channels_and_whole_groups_of_draws_are_known(scale_by, known):
    assert is_known(scale_by) == known
