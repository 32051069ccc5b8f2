"""Laws of the random draws (law 2: same key, same bits)."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from terngrad.draws import DrawKey, draws, draws_for

SEED, STEP, NODE, VARIABLE = 0x0123456789ABCDEF, 77, 3, 5


def philox_4x32_10(counter, key):
    """One block of Philox4x32-10, as published (Salmon et al., SC 2011)."""
    c, (k0, k1) = list(counter), key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [
            (p1 >> 32) ^ c[1] ^ k0,
            p1 & 0xFFFFFFFF,
            (p0 >> 32) ^ c[3] ^ k1,
            p0 & 0xFFFFFFFF,
        ]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c


def block(index):
    counter = (index & 0xFFFFFFFF, index >> 32, STEP, NODE << 16 | VARIABLE)
    return philox_4x32_10(counter, (SEED & 0xFFFFFFFF, SEED >> 32))


def expected_draw(e):
    """The definition, element by element."""
    word = block(e // 128 * 16 + e % 16)[e % 128 // 32]
    high = word >> (16 * (e // 16 % 2)) & 0xFFFF
    word = block((1 << 63) + e // 256 * 16 + e % 16)[e % 256 // 64]
    low = word >> (8 * (e // 16 % 4)) & 0xFF
    return high * 256 + low


def make_key(seed=SEED, step=STEP, node=NODE):
    return DrawKey(tf.constant(seed, tf.uint64), tf.constant(step, tf.int64), tf.constant(node))


def test_philox_known_answer():
    assert philox_4x32_10((0, 0, 0, 0), (0, 0)) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


@pytest.mark.parametrize("count", [1, 31, 128, 129, 256, 257, 1000])
def test_law_2_draws_follow_the_definition(count):
    got = draws(make_key(), VARIABLE, count).numpy()
    assert got.shape == (count,)
    np.testing.assert_array_equal(got, [expected_draw(e) for e in range(count)])


def test_law_2_a_draw_does_not_depend_on_how_many_are_drawn():
    long = draws(make_key(), VARIABLE, 5000).numpy()
    np.testing.assert_array_equal(long[:777], draws(make_key(), VARIABLE, 777).numpy())


def test_seed_step_node_and_variable_each_change_the_draws():
    streams = [
        draws(make_key(), VARIABLE, 64),
        draws(make_key(seed=SEED + 1), VARIABLE, 64),
        draws(make_key(seed=SEED + (1 << 40)), VARIABLE, 64),
        draws(make_key(step=STEP + 1), VARIABLE, 64),
        draws(make_key(node=NODE + 1), VARIABLE, 64),
        draws(make_key(), VARIABLE + 1, 64),
    ]
    assert len({stream.numpy().tobytes() for stream in streams}) == len(streams)


@pytest.mark.parametrize("node", [6, 7])
def test_antithetic_draws_are_those_of_the_pair_or_their_complements(node):
    values = tf.constant([1.0, -1.0, 0.0, -0.0, 5.0, -1e-30] * 50)
    shared = draws(make_key(node=3), VARIABLE, 300).numpy()
    complemented = (values.numpy() < 0) != (node == 7)
    key = dataclasses.replace(make_key(node=node), antithetic=True)
    expected = np.where(complemented, 2**24 - 1 - shared, shared)
    np.testing.assert_array_equal(draws_for(key, VARIABLE, values), expected)


def test_draws_of_an_independent_key_do_not_depend_on_values():
    values = tf.constant([1.0, -1.0] * 50)
    expected = draws(make_key(), VARIABLE, 100)
    np.testing.assert_array_equal(draws_for(make_key(), VARIABLE, values), expected)


def test_draws_are_uniform_in_24_bits():
    values = draws(make_key(), 0, 1 << 18).numpy()
    assert values.min() >= 0
    assert values.max() < 1 << 24
    counts = np.histogram(values, bins=64, range=(0, 1 << 24))[0]
    chi_square = ((counts - values.size / 64) ** 2 / (values.size / 64)).sum()
    assert chi_square < 120  # 63 degrees of freedom: 103 is the 99.9 % point


def test_variable_index_out_of_range_is_named():
    with pytest.raises(ValueError, match="variable index is 65536; allowed are 0 to 65535"):
        draws(make_key(), 1 << 16, 4)
