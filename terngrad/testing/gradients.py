"""Gradients and what belongs to them, for tests of kernels and codecs; and comparisons of bits."""

import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

from terngrad.draws import DrawKey

NAMES = ["a/kernel", "a/bias", "b/kernel", "b/bias"]
SHAPES = [(7, 9), (9,), (33, 5), (1,)]

seeds = st.integers(0, 2**64 - 1)
# Below, at and above a word, a group of draws (128, 256), a block of statistics (4096).
sizes = st.sampled_from([0, 1, 2, 31, 32, 33, 100, 127, 128, 129, 255, 257, 1000, 4095, 4097, 9999])
edge_values = st.sampled_from(
    [
        0.0,
        -0.0,
        1e-45,
        -1e-40,
        2.0**-126,
        -(2.0**-126),
        2.0**-120,
        1.0,
        -1.0,
        3.4e38,
        np.inf,
        np.nan,
    ]
)
scales = st.sampled_from([0.0, 2.0**-101, 2.0**-100, 1e-20, 0.5, 1.0, 3.0, 3.4e38, np.inf, np.nan])


def key_of(seed=7, step=3, node=2, antithetic=False):
    """Returns the key of the draws of a node at a step."""
    words = tf.constant(seed, tf.uint64), tf.constant(step, tf.int64), tf.constant(node)
    return DrawKey(*words, antithetic)


def normal(seed, shape):
    """Returns values of a standard normal distribution, float32."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def assert_equal_with_signs(got, expected, title):
    """Compares lists of arrays, also the signs of zeros."""
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a, b, title)
        np.testing.assert_array_equal(np.signbit(a[a == 0]), np.signbit(b[b == 0]), title)


def gradients_of(nodes, seed=1):
    """Returns gradients of variables of SHAPES, smaller ones of later variables, for each node."""
    rng = np.random.default_rng(seed)
    return [
        [
            tf.constant(rng.normal(size=shape) * 10.0**-i, tf.float32)
            for i, shape in enumerate(SHAPES)
        ]
        for _ in range(nodes)
    ]


def assert_same_bits(left, right):
    """Compares lists of float32 arrays by their bits."""
    for a, b in zip(left, right, strict=True):
        np.testing.assert_array_equal(np.asarray(a).view(np.uint32), np.asarray(b).view(np.uint32))
