"""The prefix code in which codes travel."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from terngrad import block_code, prefix_code
from terngrad.layout import MAX_SUM
from terngrad.planes import plane_count
from terngrad.testing.gradients import DISTRIBUTIONS, entropy, sum_of_codes


def planes_of(integers, largest):
    bits = [(integers >> k & 1).astype(np.uint8) for k in range(plane_count(largest))]
    return np.stack([np.packbits(b, bitorder="little").view("<u4") for b in bits], axis=1)


def sums(rows, largest, density, seed=0):
    random = np.random.default_rng(seed)
    codes = random.choice([-1, 1], (largest, 32 * rows))
    return np.where(random.random(codes.shape) < density, codes, 0).sum(axis=0)


@given(
    largest=st.integers(1, 34),
    rows=st.one_of(st.integers(0, 40), st.sampled_from([511, 512, 600])),
    density=st.sampled_from([0.0, 0.01, 0.05, 0.3, 1.0]),
    seed=st.integers(0, 1000),
)
def test_law_3_what_is_packed_comes_back_and_takes_no_more_than_its_planes(
    largest, rows, density, seed
):
    words = planes_of(sums(rows, largest, density, seed), largest)
    packed = prefix_code.pack(words, largest)
    assert packed.nbytes <= words.nbytes
    found = prefix_code.unpack(packed, largest, rows, plane_count(largest))
    np.testing.assert_array_equal(found, words)


def test_each_stream_has_whole_words():
    integers = np.zeros(8 * 32, np.int64)
    integers[[0, 5, 6]] = 1, -1, 1
    words = prefix_code.pack(planes_of(integers, 1), 1).view("<u8")
    assert words.tolist() == [0, 0b11, 0b10, 0, 0b0110, 0b010]


@given(
    largest=st.sampled_from([32, 63, 64, 127, 500, 2032, MAX_SUM]),
    rows=st.sampled_from([0, 1, 2, 40, 512, 513]),
    spread=st.sampled_from([0.001, 0.1, 0.5, 5]),
    seed=st.integers(0, 1000),
)
def test_law_3_integers_of_many_levels_come_back_and_take_no_more_than_their_planes(
    largest, rows, spread, seed
):
    values = np.rint(np.random.default_rng(seed).laplace(0, spread * largest, 32 * rows))
    words = planes_of(np.clip(values, -largest, largest).astype(np.int64), largest)
    packed = prefix_code.pack(words, largest)
    assert packed.nbytes <= words.nbytes
    found = prefix_code.unpack(packed, largest, rows, plane_count(largest))
    np.testing.assert_array_equal(found, words)


@pytest.mark.parametrize(
    ("max_code", "nodes"),
    [*((1, nodes) for nodes in (2, 3, 4, 8, 16)), (2, 1), (2, 4), (3, 1), (3, 2), (7, 1), (7, 4)],
)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_multi_level_codes_and_sums_take_a_tenth_bit_more_than_entropy_at_most(
    distribution, max_code, nodes
):
    draw = DISTRIBUTIONS[distribution]
    gradients = [draw(np.random.default_rng(i), 4 * block_code.BLOCK) for i in range(nodes)]
    integers, largest = sum_of_codes(gradients, max_code, 2.5), max_code * nodes
    packed = prefix_code.pack(planes_of(integers, largest), largest)
    assert 8 * packed.nbytes / integers.size <= entropy(integers) + 0.1


@pytest.mark.parametrize(
    ("density", "kind"), [(0.01, 2), (0.1, 0), (0.2, 0), (0.32, 1), (0.4, 1), (0.9, 2)]
)
def test_ternary_codes_with_very_few_or_very_many_zeros_travel_in_blocks(density, kind):
    words = planes_of(sums(1024, 1, density), 1)
    packed = prefix_code.pack(words, 1)
    assert packed.nbytes < words.nbytes and packed[0] == kind


@pytest.mark.parametrize("density", [0.05, 0.15, 0.3])
@pytest.mark.parametrize("nodes", [1, 2, 4, 8])
def test_sparse_codes_and_sums_take_little_more_than_their_entropy(density, nodes):
    integers = sums(4000, nodes, density)
    bits = 8 * prefix_code.pack(planes_of(integers, nodes), nodes).nbytes / integers.size
    assert bits <= 1.3 * entropy(integers) + 0.05


@given(
    content=st.binary(max_size=200),
    kind=st.sampled_from([None, 0, 1, 2]),
    largest=st.sampled_from([1, 2, 5, 31, 32, 100]),
)
def test_law_10_any_bytes_are_refused_or_give_integers_in_range(content, kind, largest):
    rows, count = 9, plane_count(largest)
    header = b"" if kind is None else kind.to_bytes(8, "little")
    packed = np.frombuffer(header + content, np.uint8)
    try:
        words = prefix_code.unpack(packed, largest, rows, count)
    except ValueError as error:
        assert "packed" in str(error)
        return
    if packed.nbytes == 4 * rows * count:
        return  # planes
    octets = [np.ascontiguousarray(plane).view(np.uint8) for plane in words.T]
    *low, sign = [np.unpackbits(each, bitorder="little").astype(int) for each in octets]
    integers = sum(plane << k for k, plane in enumerate(low)) - (sign << len(low))
    assert np.abs(integers).max() <= largest


@pytest.mark.parametrize(
    ("packed", "why"),
    [
        (np.zeros(73, np.uint8), "packed has 73 bytes; allowed are up to 72"),
        (np.zeros(5, np.uint8), "packed lacks 3 bytes"),
        (
            np.full(16, 9, np.uint8),
            "packed begins with 651061555542690057; allowed are 0 to 2",
        ),
        (np.zeros(8, np.uint8), "packed lacks 16 bytes"),
        (np.zeros(32, np.uint8), "packed has 8 bytes too many"),
    ],
)
def test_law_10_an_impossible_payload_says_what_is_wrong(packed, why):
    with pytest.raises(ValueError, match=why):
        prefix_code.unpack(packed, 1, 9, 2)
