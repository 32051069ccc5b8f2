"""Laws of clipping, scaling and drawing codes."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from terngrad import ternary
from terngrad.draws import DrawKey, draws_for
from terngrad.layout import MAX_CODES
from terngrad.parts import parts_of

ALL_DRAWS = tf.range(1 << 24, dtype=tf.float32)
INFINITY = tf.constant(float("inf"))
finite_floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


def codes(values, scale, random, bound=INFINITY, max_code=1):
    value, scale = tf.constant(values, tf.float32), tf.constant(scale, tf.float32)
    return ternary.draw_codes(value, bound, scale, random, max_code).numpy()


@pytest.mark.parametrize("max_code", MAX_CODES.values())
@pytest.mark.parametrize("scale", [1.0, 3e-5, 2.0**-90, 1e30])
@pytest.mark.parametrize("share", [0.0, 1e-7, 0.1, 1 / 3, 0.5, 0.999999, 1.0])
def test_law_1_unbiased_to_2_pow_minus_23_of_the_scale(share, scale, max_code):
    value = np.float32(share) * np.float32(scale)
    drawn = codes(-value, scale, ALL_DRAWS, max_code=max_code)
    mean = drawn.mean(dtype=np.float64) * float(ternary.unit(np.float32(scale), max_code))
    assert abs(mean + float(value)) <= 2**-23 * float(np.float32(scale))
    assert np.ptp(drawn) <= 1  # only the two codes around the value


@pytest.mark.parametrize("max_code", MAX_CODES.values())
@pytest.mark.parametrize("scale", [3e-5, 1e30])
def test_a_code_is_itself_and_larger_values_are_the_largest_code(max_code, scale):
    every = np.arange(-max_code, max_code + 1, dtype=np.float32)
    unit = np.float32(ternary.unit(np.float32(scale), max_code))
    for draw in (1e3, 2.0**23, 2.0**24 - 1e3):  # rounding errors are below 2^-14 of a unit
        random = tf.fill([every.size], draw)
        np.testing.assert_array_equal(codes(every * unit, scale, random, max_code=max_code), every)
        beyond = codes(2 * every * np.float32(scale), scale, random, max_code=max_code)
        np.testing.assert_array_equal(beyond, max_code * np.sign(every))


@pytest.mark.parametrize("max_code", MAX_CODES.values())
@pytest.mark.parametrize("odd_value", [0.3, -0.3])
def test_law_1_each_of_two_antithetic_nodes_is_unbiased(max_code, odd_value, monkeypatch):
    """Counted over all draws that the pair may share."""
    monkeypatch.setattr("terngrad.draws.draws", lambda *_: ALL_DRAWS)
    for node, value in ((4, 0.7), (5, odd_value)):
        values = tf.fill([1 << 24], value)
        random = draws_for(
            DrawKey(tf.constant(0), tf.constant(0), tf.constant(node), True), 0, values
        )
        drawn = codes(values, 1.0, random, max_code=max_code)
        mean = drawn.mean(dtype=np.float64) * float(ternary.unit(np.float32(1), max_code))
        assert abs(mean - np.float32(value)) <= 2**-23


def variance_of_mean_of_two(antithetic, max_code):
    """Of Gaussian gradients, clipped to 2.5 standard deviations: noise of codes alone."""
    rng = np.random.default_rng(5)
    signal = rng.normal(size=(2, 1 << 18)).astype(np.float32)
    signal = tf.clip_by_value(signal, -2.5, 2.5)
    noise = 0.0
    for node in range(2):
        key = DrawKey(tf.constant(9, tf.uint64), tf.constant(1), tf.constant(node), antithetic)
        drawn = codes(signal[node], 2.5, draws_for(key, 3, signal[node]), max_code=max_code)
        noise += drawn * 2.5 / max_code - signal[node]
    return float(np.mean(np.square(noise / 2)))


@pytest.mark.parametrize(("max_code", "ratio"), [(1, 0.52), (2, 0.51), (127, 0.5)])
def test_antithetic_draws_lower_the_noise_of_the_mean_of_two_nodes(max_code, ratio):
    both = [variance_of_mean_of_two(antithetic, max_code) for antithetic in (True, False)]
    assert both[0] / both[1] == pytest.approx(ratio, abs=0.03)


def test_law_1_the_mean_of_many_encodings_is_the_clipped_gradient():
    rng = np.random.default_rng(1)
    values = rng.normal(size=64).astype(np.float32)
    random = tf.constant(rng.integers(0, 1 << 24, [4000, 64]), tf.float32)
    means = 1.5 * codes(np.tile(values, [4000, 1]), 1.5, random, tf.constant(1.5)).mean(0)
    np.testing.assert_allclose(means, np.clip(values, -1.5, 1.5), atol=0.12)


@given(st.lists(finite_floats, min_size=1, max_size=40), st.integers(0, (1 << 24) - 1))
@settings(max_examples=60)
def test_codes_are_signs_of_values_and_zeros_stay_zero(values, draw):
    values = np.array(values, np.float32)
    scale = np.abs(values).max()
    got = codes(values, scale, tf.fill([values.size], float(draw)))
    assert np.all((got == 0) | (got == np.sign(values)))
    assert np.all(got[np.abs(values) < ternary.SMALLEST_NORMAL] == 0)


@given(st.lists(finite_floats, min_size=1, max_size=40))
@settings(max_examples=60)
def test_the_largest_value_is_kept_by_almost_every_draw(values):
    values = np.array(values, np.float32)
    scale = np.abs(values).max()
    got = codes(values, scale, tf.fill([values.size], float((1 << 24) - 2)))
    expected = np.sign(values) if scale >= ternary.SMALLEST_SCALE else np.zeros_like(values)
    largest = np.abs(values) == scale
    np.testing.assert_array_equal(got[largest], expected[largest])


@pytest.mark.parametrize("scale", [0.0, 2.0**-101, float("inf"), float("nan")])
def test_a_scale_that_is_zero_or_not_finite_gives_only_zeros(scale):
    assert not codes([1.0, -1.0, 0.0], scale, tf.zeros([3])).any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("clip_factor", [0.0, 2.5])
def test_a_gradient_that_is_not_finite_has_an_infinite_scale(bad, clip_factor):
    stats = ternary.stats(tf.constant([1.0, bad, 2.0]))
    bound = ternary.clip_bound(stats, 3, clip_factor)
    assert ternary.local_scale(stats, bound).numpy() == np.inf


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=200))
@settings(max_examples=60)
def test_stats_are_those_of_numpy_to_1e_6(values):
    values = np.array(values, np.float32)
    got = ternary.stats(tf.constant(values))
    wide = values.astype(np.float64)
    scale = max(1e-30, np.abs(wide).sum())
    assert abs(got.sum.numpy() - wide.sum()) <= 1e-6 * scale
    np.testing.assert_allclose(got.sum_of_squares, (wide**2).sum(), rtol=1e-6, atol=1e-30)
    if np.abs(values).max() >= ternary.SMALLEST_NORMAL:
        assert got.max_abs.numpy() == np.abs(values).max()


def test_the_bound_is_clip_factor_standard_deviations():
    values = np.random.default_rng(2).normal(3.0, 2.0, 10_000).astype(np.float32)
    bound = ternary.clip_bound(ternary.stats(tf.constant(values)), values.size, 2.5)
    np.testing.assert_allclose(bound, 2.5 * values.std(), rtol=1e-4)


@pytest.mark.parametrize("mean", [0.0, 3.0, 300.0])
def test_the_bound_of_parts_is_clip_factor_root_mean_squares(mean):
    values = np.random.default_rng(2).normal(mean, 2.0, 10_000).astype(np.float32)
    stats = ternary.stats(tf.constant(values))
    bound = ternary.clip_bound(stats, values.size, 2.5, is_centred=False)
    wide = values.astype(np.float64)
    np.testing.assert_allclose(bound, 2.5 * np.sqrt((wide * wide).mean()), rtol=1e-4)


@pytest.mark.parametrize("values", [[], [0.0] * 9, [1e-25, -2e-25], [1e20] * 9])
def test_no_bound_of_parts_whose_squares_underflow_or_overflow(values):
    stats = ternary.stats(tf.constant(values, tf.float32))
    assert ternary.clip_bound(stats, len(values), 2.5, is_centred=False).numpy() == np.inf


@pytest.mark.parametrize(
    ("values", "clip_factor"),
    [
        ([3.0] * 100, 0.0),
        ([1.0, 2.0, 5.0], 0.0),
        ([3.0], 2.5),
        ([], 2.5),
        ([0.1] * 1000, 2.5),  # equal: no spread
        ([1.0, 1.0001] * 500, 2.5),  # a spread that float32 sums cannot tell
        ([1e-25, -2e-25, 3e-25], 2.5),  # squares underflow
        ([1e20] * 10, 2.5),  # squares overflow
        ([1e30, -2e30, 3e30], 2.5),
    ],
)
def test_no_bound_without_clipping_or_a_known_spread(values, clip_factor):
    stats = ternary.stats(tf.constant(values, tf.float32))
    bound = ternary.clip_bound(stats, len(values), clip_factor)
    assert bound.numpy() == np.inf
    largest = np.abs(np.array(values, np.float32)).max(initial=0)
    assert ternary.local_scale(stats, bound).numpy() == largest


@given(st.integers(-17, 17), st.integers(0, 2**32 - 1))
@settings(max_examples=40)
def test_the_bound_follows_the_unit_of_the_gradient(exponent, seed):
    values = np.random.default_rng(seed).normal(size=1000).astype(np.float32)
    scaled = values * np.float32(10.0**exponent)
    bound = ternary.clip_bound(ternary.stats(tf.constant(scaled)), values.size, 2.5)
    np.testing.assert_allclose(bound, 2.5 * scaled.astype(np.float64).std(), rtol=1e-4)


@pytest.mark.parametrize("values", [np.full(1000, 1e36), np.repeat([1e37, -1e37], 3200)])
def test_a_sum_that_overflows_is_no_broken_gradient(values):
    stats = ternary.stats(tf.constant(values, tf.float32))
    assert ternary.local_scale(stats, tf.constant(np.inf)).numpy() == np.float32(values[0])


@pytest.mark.parametrize(
    ("scale_by", "count", "part"), [("variable", 1, 0), ("channel", 32, 5), ("block:128", 4, 1)]
)
def test_a_nan_is_in_the_largest_magnitude_of_its_part(scale_by, count, part):
    values = np.ones([16, 32], np.float32)
    values[5, 5] = np.nan
    parts = parts_of(values.shape, scale_by)
    expected = np.ones(count)
    expected[part] = np.nan
    largest = ternary.stats_of_parts(tf.constant(values), parts).max_abs
    np.testing.assert_array_equal(largest, expected)


def test_the_scale_is_the_largest_clipped_magnitude():
    values = np.random.default_rng(3).normal(size=1000).astype(np.float32)
    stats = ternary.stats(tf.constant(values))
    for clip_factor in (0.0, 0.5, 2.5, 100.0):
        bound = ternary.clip_bound(stats, values.size, clip_factor)
        clipped = np.clip(values, -bound.numpy(), bound.numpy())
        assert ternary.local_scale(stats, bound).numpy() == np.abs(clipped).max()


def test_division_by_the_number_of_nodes_is_rounded_once_inside_a_function():
    scales = tf.constant(np.random.default_rng(4).uniform(size=1000), tf.float32)
    nodes = tf.Variable(3, dtype=tf.int32)
    got = tf.function(lambda: ternary.mean_scale(scales, nodes.read_value()))()
    np.testing.assert_array_equal(got, scales.numpy() / np.float32(3))
