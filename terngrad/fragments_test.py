"""Laws of fragments: each variable is in one, and no fragment is much larger than another."""

import re

import numpy as np
import pytest

from terngrad.fragments import make_fragments

SIZES = {
    "lenet": [800, 32, 51200, 64, 3211264, 1024, 10240, 10],
    "equal": [7] * 10,
    "empty": [0, 0, 3, 0],
    "drawn": np.random.default_rng(0).integers(1, 1000, 50).tolist(),
}


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_each_variable_is_in_one_fragment_and_none_is_empty(sizes, count):
    fragments = make_fragments(sizes, count)
    assert sorted(i for fragment in fragments for i in fragment) == list(range(len(sizes)))
    assert len(fragments) == count
    assert all(fragments)
    assert all(fragment == sorted(fragment) for fragment in fragments)


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_a_fragment_has_no_more_values_than_another_and_a_variable_of_its_own(sizes, count):
    values = [[sizes[i] for i in fragment] for fragment in make_fragments(sizes, count)]
    least = min(map(sum, values))
    assert all(sum(each) <= least + min(each) for each in values)


def test_the_order_is_stated_largest_first():
    assert make_fragments([1, 5, 5, 2, 3], 2) == [[1, 4], [0, 2, 3]]


@pytest.mark.parametrize("count", [0, 5])
def test_law_10_more_fragments_than_variables_are_refused(count):
    text = f"{count} fragments of 4 trained variables; allowed are 1 to 4"
    with pytest.raises(ValueError, match=re.escape(text)):
        make_fragments([1, 2, 3, 4], count)
