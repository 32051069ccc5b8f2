"""Gradients for tests of kernels and codecs, the entropy of codes, and comparisons of bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

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


def drawn_gradients(data, shapes):
    """Returns float32 gradients that Hypothesis chooses: tiny, zero, or with an edge value."""
    edges = st.sampled_from([0.0, -0.0, 1e-45, -1e-40, 2.0**-126, 1e-20, 3.4e38, np.inf, np.nan])
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    gradients = [np.asarray(rng.normal(size=shape), np.float32) for shape in shapes]
    for gradient in gradients:
        if gradient.size > 1 and data.draw(st.booleans()):
            gradient.reshape(-1)[-1] = data.draw(edges)
        gradient *= np.float32(data.draw(st.sampled_from([1, 0, 1e-31])))
    return gradients


def assert_same_bits(left, right):
    """Compares lists of float32 arrays by their bits."""
    for a, b in zip(left, right, strict=True):
        np.testing.assert_array_equal(np.asarray(a).view(np.uint32), np.asarray(b).view(np.uint32))


DISTRIBUTIONS: Mapping[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "normal": lambda random, size: random.normal(size=size),
    "Laplace": lambda random, size: random.laplace(size=size),
    "half zeros": lambda random, size: random.laplace(size=size) * random.integers(0, 2, size),
}


def sum_of_codes(gradients: Sequence[np.ndarray], max_code: int, clip: float) -> np.ndarray:
    """Returns the sum of the nodes' codes: int32 [n].

    Each gradient, float [n], is clipped to `clip` standard deviations. The largest value of all has
    the code `max_code`, and others are rounded to one of their two neighbours without bias.
    """
    bounds = [clip * each.std() for each in gradients]
    clipped = [np.clip(g, -b, b) for g, b in zip(gradients, bounds, strict=True)]
    scale = max(np.abs(each).max(initial=0) for each in clipped)
    total, random = np.zeros(gradients[0].size, np.int32), np.random.default_rng(1)
    for each in clipped:
        ideal = each / (scale or 1) * max_code
        total += np.floor(ideal + random.random(ideal.size)).astype(np.int32)
    return total


def entropy(integers: np.ndarray) -> float:
    """Returns the entropy of integers, in bits an integer."""
    shares = np.unique(integers, return_counts=True)[1] / integers.size
    return float(-(shares * np.log2(shares)).sum())
