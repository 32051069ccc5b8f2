"""The code of integers in blocks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from terngrad import bit_code, block_code
from terngrad.testing.gradients import DISTRIBUTIONS, entropy, sum_of_codes


@given(
    largest=st.sampled_from([1, 2, 3, 4, 7, 8, 31, 32, 100, 127, 508, 2032, 1 << 16]),
    count=st.sampled_from([32, 320, block_code.BLOCK, block_code.BLOCK + 32]),
    spread=st.sampled_from([0.01, 0.1, 0.4, 2]),
    zeros=st.sampled_from([0, 0.5, 0.99]),
    seed=st.integers(0, 1000),
)
def test_law_3_integers_come_back(largest, count, spread, zeros, seed):
    random = np.random.default_rng(seed)
    values = np.rint(random.laplace(0, spread * largest, count))
    integers = np.clip(values, -largest, largest).astype(np.int32)
    integers[random.random(count) < zeros] = 0
    reader = bit_code.Reader(block_code.pack(integers, largest))
    np.testing.assert_array_equal(block_code.unpack(reader, largest, count), integers)
    reader.finish()


@pytest.mark.parametrize("clip", [2.5, 4.0])
@pytest.mark.parametrize(
    ("max_code", "nodes"), [(1, 1), (2, 1), (2, 4), (3, 2), (7, 2), (127, 1), (127, 16)]
)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_codes_and_sums_take_at_most_a_tenth_bit_more_than_their_entropy(
    distribution, max_code, nodes, clip
):
    draw = DISTRIBUTIONS[distribution]
    gradients = [draw(np.random.default_rng(i), 8 * block_code.BLOCK) for i in range(nodes)]
    integers = sum_of_codes(gradients, max_code, clip)
    bits = 8 * block_code.pack(integers, max_code * nodes).size / integers.size
    assert bits <= entropy(integers) + 0.1


def test_a_block_adapts_to_its_own_integers():
    narrow, wide = np.zeros(block_code.BLOCK, np.int32), np.arange(block_code.BLOCK) % 255 - 127
    integers = np.concatenate([narrow, wide]).astype(np.int32)
    assert block_code.pack(integers[: block_code.BLOCK], 127).tolist() == [0x80, 6]
    assert block_code.pack(integers, 127).size < 1.02 * block_code.BLOCK


@pytest.mark.parametrize(("zeros", "mode"), [(0.32, 16 + 4), (0.37, 0), (0.63, 0), (0.68, 4)])
def test_where_small_integers_differ_from_zero_is_coded_only_if_that_saves_much(zeros, mode):
    random = np.random.default_rng(0)
    integers = np.where(random.random(block_code.BLOCK) < zeros, 0, 1).astype(np.int32)
    assert block_code.pack(integers, 4)[:2].tolist() == [0x80, mode]
    many = block_code.pack(integers * random.choice([4, 12], integers.size), 15)
    assert many[0] == 0x82 and many[1] % 16 == 4


def test_the_documented_bytes_of_a_block():
    integers = np.tile(np.array([0, 3, -2, 1], np.int32), 8)
    assert block_code.pack(integers, 3).tobytes().hex(" ") == (
        "80 "  # zeros are left out, and no bits are random
        "13 9e e7 79 "  # 24 of 32 differ from zero: in code 3, inverted
        "00 92 24 49 "  # the second of three is negative
        "00 db b6 6d "  # of the magnitudes minus 1 the first two are at least 1,
        "00 55 55 "  # of those the first is at least 2,
        "16"  # and all that are have the largest value: no zeros
    )


@pytest.mark.parametrize(
    ("packed", "why"),
    [
        ([], "packed lacks 1 bytes"),
        ([7], "packed has a block that begins with 7"),
        ([6, 0], "packed lacks 4 bytes"),
        ([0, 6, *[22] * 7, 6, *[22] * 6], "packed has an integer above 100"),
    ],
)
def test_law_10_an_impossible_block_says_what_is_wrong(packed, why):
    with pytest.raises(ValueError, match=why):
        block_code.unpack(bit_code.Reader(np.array(packed, np.uint8)), 100, 32)
