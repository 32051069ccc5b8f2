"""Laws of the codecs with feedback: the nearest level is sent, and what that loses is kept."""

import numpy as np
import pytest
import tensorflow as tf

from terngrad import planes
from terngrad.codecs.factory import make_codecs
from terngrad.codecs.feedback_codec import STEPS
from terngrad.draws import DrawKey
from terngrad.exchange.local import LocalExchange
from terngrad.layout import FEEDBACK_CODES, Policy, make_layout
from terngrad.ops.reference import ReferenceKernels
from terngrad.training.reduction import exchange_gradients

KEY = DrawKey(tf.constant(5, tf.uint64), tf.constant(1, tf.int64), tf.constant(0))


@pytest.fixture(params=FEEDBACK_CODES, name="name")
def _name(request):
    return request.param


def codec_of(name, kernels, shapes, scale_by="variable"):
    """The codec of variables in one bucket, which reverses them."""
    names = [f"v{i}/kernel" for i in range(len(shapes))]
    (codec,) = make_codecs(
        make_layout(names, shapes, Policy(codec=name, scale_by=scale_by)), kernels
    )
    return codec


class Node:
    """A node alone, step by step."""

    def __init__(self, name, kernels, shape, scale_by="variable"):
        self.codec = codec_of(name, kernels, [shape], scale_by)
        self.memory = self.codec.init()
        self.scales = tf.constant([])

    def step(self, gradient, scales=None):
        """Returns what is sent."""
        gradient = tf.constant(gradient, tf.float32)
        corrected, measured = self.codec.correct_and_measure([gradient], self.memory)
        self.scales = measured.scales if scales is None else tf.constant(scales, tf.float32)
        codes = self.codec.encode(corrected, measured.bounds, self.scales, KEY)
        self.memory = self.codec.update(corrected, codes, self.scales)
        return self.codec.sent(codes, self.scales)[0].numpy()

    @property
    def kept(self):
        """The memory."""
        return self.memory[0].numpy()


def normal(*shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("scale_by", ["variable", "channel", "block:128"])
def test_each_value_is_sent_as_the_level_next_to_it(name, scale_by, kernels):
    values, node = normal(400, 3), Node(name, kernels, (400, 3), scale_by)
    sent = node.step(values)
    max_code = FEEDBACK_CODES[name]
    parts = {
        "variable": np.zeros((400, 3), int),
        "channel": np.tile(np.arange(3), (400, 1)),
        "block:128": np.arange(1200).reshape(400, 3) // 128,
    }[scale_by]
    for part in np.unique(parts):
        own = values[parts == part].astype(np.float64)
        unit = STEPS[max_code] * np.sqrt(np.mean(own**2))
        levels = unit * np.arange(-max_code, max_code + 1)
        nearest = levels[np.argmin(np.abs(own[:, None] - levels), axis=1)]
        np.testing.assert_allclose(sent[parts == part], nearest, rtol=1e-5)


def test_law_9_what_is_kept_is_exactly_what_is_not_sent(name, kernels):
    """Float32 has the difference up to twice the largest level; above it is rounded once."""
    node = Node(name, kernels, (5000,))
    for step in range(4):
        before = node.kept
        gradient = normal(5000, seed=step) * 10.0 ** (step - 2)
        sent = node.step(gradient)
        corrected = before + gradient  # in float32, as it is encoded
        exact = corrected.astype(np.float64) - sent
        near = np.abs(corrected) <= 2 * node.scales.numpy()
        assert np.mean(near) > 0.9
        np.testing.assert_array_equal(node.kept[near].astype(np.float64), exact[near])
        np.testing.assert_array_equal(node.kept, exact.astype(np.float32))


@pytest.mark.slow
def test_law_1_what_is_sent_over_many_steps_is_the_gradient_but_for_the_memory(name, kernels):
    gradient, node, steps = normal(500), Node(name, kernels, (500,)), 100
    total = sum(node.step(gradient).astype(np.float64) for _ in range(steps))
    np.testing.assert_allclose(total + node.kept, steps * gradient, atol=1e-2)
    assert np.abs(node.kept).max() < 0.25 * steps * np.abs(gradient).max()


@pytest.mark.slow
@pytest.mark.parametrize(
    "gradient",
    [
        1.0 + 0.01 * normal(300),
        np.full(300, 1.0),
        np.where(np.arange(300) == 7, 100.0, 0.01),
        np.full(1, -3.0),
        np.array([1.0, 0.0]),
    ],
    ids=["almost alike", "alike", "one large", "single", "two"],
)
def test_the_memory_stays_bounded_whatever_the_distribution(name, gradient, kernels):
    node, largest = Node(name, kernels, gradient.shape), []
    for _ in range(100):
        node.step(gradient)
        largest.append(np.linalg.norm(node.kept) / np.linalg.norm(gradient))
    assert max(largest[50:]) <= 1.05 * max(largest[:50])


@pytest.mark.parametrize("gradient", [[-3.0], [2.0, -2.0, 2.0], [1e-25, -1e-25], [3e38, -3e38]])
def test_values_of_one_magnitude_are_sent_whole(name, gradient, kernels):
    """Also where squares underflow or overflow."""
    node = Node(name, kernels, (len(gradient),))
    np.testing.assert_array_equal(node.step(gradient), np.float32(gradient))
    np.testing.assert_array_equal(node.kept, 0.0)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_empties_the_memory_of_its_part_alone(name, value, kernels):
    node = Node(name, kernels, (100, 2), "channel")
    node.step(normal(100, 2))
    assert np.all(np.any(node.kept, axis=0))
    broken = normal(100, 2, seed=2)
    broken[3, 1] = value
    node.step(broken)
    np.testing.assert_array_equal(np.isinf(node.scales), [False, True])
    assert np.any(node.kept[:, 0])
    np.testing.assert_array_equal(node.kept[:, 1], 0.0)
    node.step(normal(100, 2, seed=3))
    assert np.all(np.any(node.kept, axis=0))


def test_nodes_round_to_multiples_of_the_largest_of_their_units(name, kernels):
    codec = codec_of(name, kernels, [(64,)])
    gradients = [[tf.constant(normal(64, seed=i) * 10.0**i)] for i in range(2)]
    keys, devices = [KEY] * 2, ["/CPU:0"] * 2
    exchange, memories = LocalExchange(2, kernels), [[codec.init(), codec.init()]]
    found = exchange_gradients(gradients, [codec], exchange, keys, devices, memories)
    own = [codec.measure(node).scales.numpy() for node in gradients]
    np.testing.assert_array_equal(found.scales, np.maximum(*own))
    sums = found.means[0].numpy() * 2 * FEEDBACK_CODES[name] / found.scales.numpy()
    np.testing.assert_allclose(sums, np.round(sums), atol=1e-5)
    # Nothing of the smaller one is large enough: all of it is kept.
    np.testing.assert_array_equal(found.kept[0][0][0], gradients[0][0])


def test_nothing_is_drawn(name, kernels):
    codec, values = codec_of(name, kernels, [(100,)]), [tf.constant(normal(100))]
    key = DrawKey(tf.constant(6, tf.uint64), tf.constant(7, tf.int64), tf.constant(1), True)
    scales = codec.measure(values).scales
    one, other = (codec.encode(values, scales, scales, k)[0] for k in (KEY, key))
    assert one.shape == [4, planes.plane_count(codec.max_code)]
    np.testing.assert_array_equal(one, other)


def test_law_10_clipping_is_refused_with_the_reason(name):
    layout = make_layout(["a/kernel"], [(8,)], Policy(codec=name, clip_factor=2.5))
    with pytest.raises(ValueError, match=f"clip_factor is 2.5; allowed is 0 with {name}: what .*"):
        make_codecs(layout, ReferenceKernels())
