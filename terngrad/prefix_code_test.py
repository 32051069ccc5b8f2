"""The prefix code in which codes travel."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from terngrad import prefix_code
from terngrad.planes import plane_count


def planes_of(integers, largest):
    bits = [(integers >> k & 1).astype(np.uint8) for k in range(plane_count(largest))]
    return np.stack([np.packbits(b, bitorder="little").view("<u4") for b in bits], axis=1)


def sums(rows, largest, density, seed=0):
    random = np.random.default_rng(seed)
    codes = random.choice([-1, 1], (largest, 32 * rows))
    return np.where(random.random(codes.shape) < density, codes, 0).sum(axis=0)


@given(
    largest=st.integers(1, prefix_code.LARGEST + 3),
    rows=st.integers(0, 40),
    density=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
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


def entropy(integers):
    shares = np.unique(integers, return_counts=True)[1] / integers.size
    return -(shares * np.log2(shares)).sum()


@pytest.mark.parametrize("density", [0.05, 0.15, 0.3])
@pytest.mark.parametrize("nodes", [1, 2, 4, 8])
def test_sparse_codes_and_sums_take_little_more_than_their_entropy(density, nodes):
    integers = sums(4000, nodes, density)
    bits = 8 * prefix_code.pack(planes_of(integers, nodes), nodes).nbytes / integers.size
    assert bits <= 1.3 * entropy(integers) + 0.05


@given(content=st.binary(max_size=200), largest=st.sampled_from([1, 2, 5]))
def test_law_10_any_bytes_are_refused_or_give_integers_in_range(content, largest):
    rows, count = 9, plane_count(largest)
    packed = np.frombuffer(content, np.uint8)
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
        (np.full(16, 9, np.uint8), "packed begins with 651061555542690057; allowed are 0 and 1"),
        (np.zeros(8, np.uint8), "packed lacks 16 bytes"),
        (np.zeros(32, np.uint8), "packed has 8 bytes too many"),
    ],
)
def test_law_10_an_impossible_payload_says_what_is_wrong(packed, why):
    with pytest.raises(ValueError, match=why):
        prefix_code.unpack(packed, 1, 9, 2)
