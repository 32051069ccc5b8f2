"""Laws of bit planes: packing loses nothing, sums are exact."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from terngrad import planes


def to_planes(values, count):
    """The definition, bit by bit."""
    words = np.zeros((len(values) // 32, count), np.uint32)
    for i, value in enumerate(values):
        for j in range(count):
            words[i // 32, j] |= np.uint32((int(value) >> j & 1) << i % 32)
    return words


def random_codes(rng, groups):
    return rng.integers(-1, 2, 32 * groups)


@pytest.mark.parametrize("nodes", range(1, 130))
def test_plane_count_is_the_fewest_bits_that_hold_the_sum(nodes):
    count = planes.plane_count(nodes)
    assert count == np.ceil(np.log2(2 * nodes + 1))
    assert count == 1 + np.ceil(np.log2(nodes + 1))


def test_pack_puts_element_i_into_bit_i():
    bits = np.random.default_rng(1).integers(0, 2, 320).astype(bool)
    expected = to_planes(bits.astype(int), 1)[:, 0]
    np.testing.assert_array_equal(planes.pack(tf.constant(bits)), expected)


@given(st.integers(1, 17), st.integers(0, 2**32 - 1))
@settings(max_examples=40)
def test_unpack_reads_twos_complement(count, seed):
    limit = 1 << (count - 1)
    values = np.random.default_rng(seed).integers(-limit, max(limit, 1), 96)
    got = planes.unpack(tf.constant(to_planes(values, count)))
    np.testing.assert_array_equal(got, values)


@given(st.integers(1, 70), st.integers(0, 2**32 - 1))
@settings(max_examples=25)
def test_law_5_the_sum_of_codes_is_the_exact_integer_sum(kernels, nodes, seed):
    rng = np.random.default_rng(seed)
    codes = [random_codes(rng, 3) for _ in range(nodes)]
    words = [tf.constant(to_planes(c, 2)) for c in codes]
    total = kernels.sum(words, planes.plane_count(nodes))
    assert total.shape == (3, planes.plane_count(nodes))
    np.testing.assert_array_equal(planes.unpack(total), np.sum(codes, 0))


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 7, 8, 64])
@pytest.mark.parametrize("code", [-1, 1])
def test_the_extreme_sums_fit(nodes, code, kernels):
    words = tf.constant(to_planes(np.full(32, code), 2))
    total = kernels.sum([words] * nodes, planes.plane_count(nodes))
    np.testing.assert_array_equal(planes.unpack(total), np.full(32, code * nodes))


def test_sums_do_not_depend_on_how_nodes_are_spread_over_processes(kernels):
    rng = np.random.default_rng(5)
    codes = [tf.constant(to_planes(random_codes(rng, 2), 2)) for _ in range(6)]
    whole = kernels.sum(codes, planes.plane_count(6))
    parts = [kernels.sum(p, planes.plane_count(len(p))) for p in (codes[:1], codes[1:])]
    joined = kernels.sum(parts, planes.plane_count(6))
    np.testing.assert_array_equal(whole, joined)


@given(st.lists(st.integers(0, 70), max_size=9), st.integers(1, 5), st.integers(0, 2**32 - 1))
@settings(max_examples=40)
def test_integers_that_are_not_zero_are_counted_in_each_segment(sizes, count, seed):
    limit = 1 << (count - 1)
    rng = np.random.default_rng(seed)
    values = rng.integers(-limit, limit, planes.padded(sum(sizes))) * rng.integers(0, 2)
    got = planes.count_nonzero(tf.constant(to_planes(values, count)), sizes)
    ends = np.cumsum([0, *sizes])
    assert got.numpy().tolist() == [
        np.count_nonzero(values[begin:end]) for begin, end in itertools.pairwise(ends)
    ]


def test_an_empty_bucket_packs_to_nothing():
    words = tf.stack([planes.pack(tf.zeros([0], tf.bool))] * 2, axis=1)
    assert words.shape == (0, 2)
    assert planes.unpack(words).shape == (0,)
