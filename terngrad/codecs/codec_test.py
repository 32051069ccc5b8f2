"""Laws that every codec keeps; each test runs over the whole table."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from terngrad.codecs.factory import make_codecs, payloads
from terngrad.draws import DrawKey
from terngrad.exchange.local import LocalExchange
from terngrad.layout import Policy, make_layout
from terngrad.planes import plane_count
from terngrad.training.step import exchange_gradients

NAMES = ["a/kernel", "a/bias", "b/kernel", "b/bias"]
SHAPES = [(7, 9), (9,), (33, 5), (1,)]
POLICIES = {
    "float": Policy(grad_bits=32),
    "float16": Policy(grad_bits=16),
    "ternary": Policy(grad_bits=1),
    "clipped": Policy(grad_bits=1, clip_factor=2.5),
    "mixed": Policy(grad_bits=1, size_to_binarize=10),
    "unpacked": Policy(grad_bits=1, use_encoding=False),
    "own scale": Policy(grad_bits=1, scaler_sharing=False),
}


def gradients_of(nodes, seed=1):
    rng = np.random.default_rng(seed)
    return [
        [
            tf.constant(rng.normal(size=shape) * 10.0**-i, tf.float32)
            for i, shape in enumerate(SHAPES)
        ]
        for _ in range(nodes)
    ]


def exchange_of(policy, gradients, kernels, step=3, bucket_elements=1 << 22, seed=9):
    """Mean gradients, as a train step gets them."""
    layout = make_layout(NAMES, SHAPES, policy, bucket_elements)
    exchange = LocalExchange(len(gradients), kernels)

    @tf.function(autograph=False)
    def run(gradients, step):
        keys = [
            DrawKey(tf.constant(seed, tf.uint64), step, tf.constant(node))
            for node in range(len(gradients))
        ]
        return exchange_gradients(
            gradients, make_codecs(layout, kernels), exchange, keys, ["/CPU:0"] * len(keys)
        )

    return run(gradients, tf.constant(step, tf.int64))


def assert_same_bits(left, right):
    for a, b in zip(left, right, strict=True):
        np.testing.assert_array_equal(np.asarray(a).view(np.uint32), np.asarray(b).view(np.uint32))


@pytest.fixture(params=POLICIES, name="policy")
def _policy(request):
    return POLICIES[request.param]


@pytest.mark.parametrize("nodes", [1, 2, 3, 8])
def test_law_1_the_mean_over_many_steps_is_the_clipped_mean_gradient(policy, nodes, kernels):
    gradients = gradients_of(nodes)
    steps = 400 // nodes if policy.grad_bits == 1 else 1  # as many draws for each number of nodes
    layout = make_layout(NAMES, SHAPES, policy)
    exchange = LocalExchange(nodes, kernels)

    @tf.function(autograph=False)
    def run(step):
        keys = [DrawKey(tf.constant(5, tf.uint64), step, tf.constant(n)) for n in range(nodes)]
        return exchange_gradients(
            gradients, make_codecs(layout, kernels), exchange, keys, ["/CPU:0"] * len(keys)
        ).means

    total = [np.zeros(shape) for shape in SHAPES]
    for step in range(steps):
        for mean, part in zip(total, run(tf.constant(step, tf.int64)), strict=True):
            mean += part.numpy() / steps
    for i in range(len(SHAPES)):
        node_values = np.array([g[i].numpy() for g in gradients], np.float64)
        if policy.clip_factor and SHAPES[i] != (1,):
            axes = tuple(range(1, node_values.ndim))
            bounds = policy.clip_factor * node_values.std(axis=axes, keepdims=True)
            node_values = np.clip(node_values, -bounds, bounds)
        scale = np.abs(node_values).max()
        noise = {1: 5 * 0.5 / np.sqrt(steps * nodes), 16: 1e-3, 32: 1e-6}[policy.grad_bits]
        np.testing.assert_allclose(total[i], node_values.mean(0), atol=noise * scale)


def test_law_2_the_same_key_gives_the_same_bits(policy, kernels):
    gradients = gradients_of(2)
    assert_same_bits(
        exchange_of(policy, gradients, kernels).means, exchange_of(policy, gradients, kernels).means
    )


def test_law_2_bucket_size_does_not_matter(policy, kernels):
    gradients = gradients_of(3)
    one = exchange_of(policy, gradients, kernels, bucket_elements=1 << 22)
    many = exchange_of(policy, gradients, kernels, bucket_elements=1)
    assert_same_bits(one.means, many.means)


@pytest.mark.parametrize("nodes", [1, 2, 5])
@pytest.mark.parametrize("clip_factor", [0.0, 2.5])
def test_packing_changes_no_bit(nodes, clip_factor, kernels):
    gradients = gradients_of(nodes)
    packed, plain = (
        exchange_of(
            Policy(grad_bits=1, clip_factor=clip_factor, use_encoding=encoding), gradients, kernels
        )
        for encoding in (True, False)
    )
    assert_same_bits(packed.means, plain.means)


@pytest.mark.parametrize("nodes", [1, 2, 3, 6])
def test_law_5_the_mean_is_scale_over_nodes_times_an_integer(nodes, kernels):
    gradients = gradients_of(nodes)
    result = exchange_of(Policy(grad_bits=1), gradients, kernels)
    for i, mean in enumerate(result.means):
        scale = np.max([np.abs(g[i].numpy()).max() for g in gradients])
        unit = scale / np.float32(nodes)
        sums = np.round(mean.numpy() / unit)
        assert np.abs(sums).max() <= nodes
        np.testing.assert_array_equal(mean.numpy(), unit * sums.astype(np.float32))


SPECIAL = st.sampled_from([0.0, -0.0, 1e-45, -1e-40, 2.0**-126, 2.0**-101, 3e38, -3e38, 1.0])
SHAPES_OF_VARIABLES = st.lists(st.lists(st.integers(0, 40), max_size=2), min_size=1, max_size=4)


@given(SHAPES_OF_VARIABLES, st.integers(1, 6), st.data(), st.integers(0, 2**64 - 1))
@settings(max_examples=40, deadline=None)
def test_law_5_holds_for_all_shapes_values_and_numbers_of_nodes(kernels, shapes, nodes, data, seed):
    names = [f"v{i}/kernel" for i in range(len(shapes))]
    codecs = make_codecs(make_layout(names, shapes, Policy(grad_bits=1)), kernels)
    rng = np.random.default_rng(seed)
    gradients = [[rng.normal(size=s).astype(np.float32) for s in shapes] for _ in range(nodes)]
    for node in gradients:
        for values in node:
            values.reshape(-1)[:1] = data.draw(SPECIAL)
    keys = [
        DrawKey(tf.constant(seed, tf.uint64), tf.constant(1), tf.constant(n)) for n in range(nodes)
    ]
    tensors = [[tf.constant(values) for values in node] for node in gradients]
    means = exchange_gradients(
        tensors, codecs, LocalExchange(nodes, kernels), keys, ["/CPU:0"] * len(keys)
    ).means
    for i, mean in enumerate(means):
        scale = max([np.abs(node[i]).max(initial=0) for node in gradients])
        unit = np.float32(scale if scale >= 2.0**-100 else 0) / np.float32(nodes)
        sums = np.round(mean.numpy() / unit) if unit else np.zeros(shapes[i])
        np.testing.assert_array_equal(mean.numpy(), unit * sums.astype(np.float32))
        assert np.all(np.abs(sums) <= nodes)
        signs = np.sign([node[i] for node in gradients])
        assert np.all(sums <= np.sum(signs > 0, 0)) and np.all(-sums <= np.sum(signs < 0, 0))


@pytest.mark.parametrize("nodes", [1, 2, 4, 7])
def test_law_6_the_float_codec_delivers_the_mean(nodes, kernels):
    gradients = gradients_of(nodes)
    for i, mean in enumerate(exchange_of(Policy(grad_bits=32), gradients, kernels).means):
        expected = np.mean([g[i].numpy().astype(np.float64) for g in gradients], axis=0)
        np.testing.assert_allclose(mean, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_law_7_payload_is_two_bits_a_value_and_four_bytes_a_variable(nodes, kernels):
    layout = make_layout(NAMES, SHAPES, Policy(grad_bits=1))
    found = payloads(make_codecs(layout, kernels), LocalExchange(nodes, kernels))
    padded = -(-layout.size // 32) * 32
    assert sum(p.sent for p in found) == pytest.approx(padded * 2 / 8 + 4 * len(NAMES))
    assert sum(p.received for p in found) == pytest.approx(
        padded * plane_count(nodes) / 8 + 4 * len(NAMES)
    )


def test_law_7_payload_is_what_encode_produces(policy, kernels):
    layout = make_layout(NAMES, SHAPES, policy)
    gradients = gradients_of(1)
    encoded = exchange_of(policy, gradients, kernels).encoded
    octets = sum(bucket.dtype.size * int(tf.size(bucket)) for codec in encoded for bucket in codec)
    scales = 4 * len(layout.coded)
    assert sum(
        p.sent for p in payloads(make_codecs(layout, kernels), LocalExchange(1, kernels))
    ) == pytest.approx(octets + scales)


@pytest.mark.parametrize(("name", "bits"), [("float", 32), ("float16", 16)])
def test_law_7_floats_cost_their_bits(name, bits, kernels):
    layout = make_layout(NAMES, SHAPES, POLICIES[name])
    found = payloads(make_codecs(layout, kernels), LocalExchange(4, kernels))
    assert sum(p.sent for p in found) == layout.size * bits / 8


def test_the_share_of_zeros_is_counted(kernels):
    policy = Policy(grad_bits=1)
    layout = make_layout(NAMES, SHAPES, policy)
    gradients = gradients_of(1)
    result = exchange_of(policy, gradients, kernels)
    shares = make_codecs(layout, kernels)[0].share_of_zeros(result.encoded[0])
    for variable, share in shares.items():
        np.testing.assert_allclose(share, np.mean(result.means[variable].numpy() == 0), atol=1e-6)


def test_a_gradient_that_is_not_finite_shows_in_its_scale_alone(kernels):
    gradients = gradients_of(2)
    gradients[1][2] = tf.tensor_scatter_nd_update(gradients[1][2], [[0, 0]], [np.nan])
    result = exchange_of(Policy(grad_bits=1), gradients, kernels)
    layout = make_layout(NAMES, SHAPES, Policy(grad_bits=1))
    broken = [layout.coded[i] for i in np.flatnonzero(~np.isfinite(result.scales))]
    assert broken == [2]


def test_own_scales_deliver_each_node_at_its_own_scale(kernels):
    gradients = gradients_of(2)
    gradients[1] = [0.001 * g for g in gradients[1]]
    result = exchange_of(POLICIES["own scale"], gradients, kernels)
    for i, mean in enumerate(result.means):
        scales = [np.abs(g[i].numpy()).max() for g in gradients]
        allowed = [(a * scales[0] + b * scales[1]) / 2 for a in (-1, 0, 1) for b in (-1, 0, 1)]
        distance = np.abs(mean.numpy()[..., None] - np.array(allowed))
        assert distance.min(-1).max() <= 1e-6 * scales[0]
