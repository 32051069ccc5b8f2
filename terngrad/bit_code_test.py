"""The code of streams of bits."""

import heapq
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from terngrad import bit_code


def random_bits(count, share, seed=0):
    return (np.random.default_rng(seed).random(count) < share).astype(np.uint8)


def entropy(share):
    parts = [share, 1 - share]
    return -sum(part * math.log2(part) for part in parts if part)


@given(
    count=st.sampled_from([0, 1, 7, 8, 63, 64, 65, 500, 2047, 2048, 5000, 16384]),
    share=st.sampled_from([0, 0.001, 0.03, 0.1, 0.2, 0.3, 0.45, 0.6, 0.9, 0.99, 1]),
    run=st.sampled_from([1, 40]),
    seed=st.integers(0, 1000),
)
def test_law_3_a_stream_comes_back_and_takes_at_most_one_byte_more_than_its_bits(
    count, share, run, seed
):
    bits = np.repeat(random_bits(count // run + 1, share, seed), run)[:count]
    packed = bit_code.write(bits)
    assert packed.size <= (count > 0) + -(-count // 8)
    reader = bit_code.Reader(packed)
    np.testing.assert_array_equal(reader.stream(count), bits)
    reader.finish()


@pytest.mark.parametrize("share", [0.001, 0.01, 0.04, 0.06, 0.1, 0.17, 0.25, 0.3, 0.4, 0.5, 0.8])
def test_a_stream_takes_little_more_than_its_entropy(share):
    bits = random_bits(1 << 16, share)
    taken = 8 * sum(bit_code.write(part).size for part in np.split(bits, 4)) / bits.size
    assert taken <= entropy(bits.mean()) + 0.04


def test_streams_without_ones_or_zeros_take_one_byte():
    assert bit_code.write(np.zeros(9999, np.uint8)).tolist() == [6]
    assert bit_code.write(np.ones(9999, np.uint8)).tolist() == [16 + 6]


def test_the_documented_bytes_of_a_stream():
    bits = np.zeros(128, np.uint8)
    bits[[3, 64, 65]] = 1
    # Octets 0 and 8 of 16 differ from 0: a stream says so, twice 0100. They are 0111 and 1010000.
    assert bit_code.write(bits).tobytes().hex(" ") == "0a 02 22 5e 00"


@pytest.mark.parametrize(("code", "ones"), [(1, 4), (2, 9), (3, 16), (4, 24), (5, 2.5)])
def test_each_code_has_a_word_for_each_octet_and_is_nearly_the_shortest(code, ones):
    counts = bit_code.CODES[code - 1]
    assert sum(counts) == 256
    assert sum(count << (11 - length) for length, count in enumerate(counts, 1)) == 1 << 11
    lengths, _ = bit_code._encoding(code)
    weights = [ones ** o.bit_count() * (64 - ones) ** (8 - o.bit_count()) for o in range(256)]
    weights[0] *= code < 5  # the last code is for octets other than 0
    taken = sum(weight * int(length) for weight, length in zip(weights, lengths, strict=True))
    assert taken <= shortest(weights) * 1.06


def shortest(weights):
    """The length of Huffman's code: each node's weight is a bit of all octets below it."""
    left, total = list(weights), 0
    heapq.heapify(left)
    while len(left) > 1:
        joined = heapq.heappop(left) + heapq.heappop(left)
        total += joined
        heapq.heappush(left, joined)
    return total


@given(content=st.binary(max_size=60), count=st.sampled_from([1, 8, 100, 700, 4000]))
def test_law_10_any_bytes_are_refused_or_give_bits(content, count):
    try:
        bits = bit_code.Reader(np.frombuffer(content, np.uint8)).stream(count)
    except ValueError as error:
        assert "packed" in str(error)
        return
    assert bits.size == count and set(bits) <= {0, 1}


@pytest.mark.parametrize(
    ("packed", "why"),
    [
        ([], "packed lacks 1 bytes"),
        ([0, 1], "packed lacks 124 bytes"),
        ([7], "packed has a stream of the unknown kind 7"),
        ([8 + 6], "packed has a stream of the unknown kind 14"),
        ([32], "packed has a stream of the unknown kind 32"),
        ([1, 255], "packed lacks code words"),
        ([8] * 2000, "packed has a stream of kind 8 and only 16 bits"),
    ],
)
def test_law_10_an_impossible_stream_says_what_is_wrong(packed, why):
    with pytest.raises(ValueError, match=why):
        bit_code.Reader(np.array(packed, np.uint8)).stream(1000)
