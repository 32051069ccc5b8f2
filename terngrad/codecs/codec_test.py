"""Laws that every codec keeps; each test runs over the whole table."""

import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from terngrad.codecs.factory import make_codecs, payloads
from terngrad.draws import DrawKey
from terngrad.exchange.exchange import LocalBucket
from terngrad.exchange.local import LocalExchange
from terngrad.layout import BITS_OF_CODEC, DRAWS, MAX_CODES, Policy, codec_of, make_layout
from terngrad.ops.reference import ReferenceKernels
from terngrad.planes import plane_count
from terngrad.testing.gradients import NAMES, SHAPES, assert_same_bits, gradients_of
from terngrad.testing.memory import peak_bytes
from terngrad.training.classifier import Losses
from terngrad.training.errors import not_finite
from terngrad.training.reduction import exchange_gradients

UNPACKED = "terngrad.codecs.examples:UnpackedTernaryCodec"
POLICIES = {
    "float": Policy(grad_bits=32),
    "float16": Policy(grad_bits=16),
    "ternary": Policy(grad_bits=1),
    "clipped": Policy(grad_bits=1, clip_factor=2.5),
    "antithetic": Policy(grad_bits=1, clip_factor=2.5, draws="antithetic"),
    "5-level": Policy(grad_bits=2, clip_factor=2.5),
    "7-level": Policy(grad_bits=3, draws="antithetic"),
    "15-level": Policy(grad_bits=4, clip_factor=2.5, draws="antithetic"),
    "255-level": Policy(grad_bits=8),
    "mixed": Policy(grad_bits=1, size_to_binarize=10),
    "channel": Policy(grad_bits=1, scale_by="channel"),
    "block": Policy(grad_bits=1, scale_by="block:128"),
    "unpacked": Policy(codec=UNPACKED),
    "own scale": Policy(codec="terngrad.codecs.examples:OwnScaleTernaryCodec"),
    "own channel scale": Policy(
        codec="terngrad.codecs.examples:OwnScaleTernaryCodec", scale_by="channel"
    ),
}
CODED_BITS = [BITS_OF_CODEC[name] for name in MAX_CODES]
WITH_MEMORY = {
    "ternary-feedback": Policy(codec="ternary-feedback"),
    "5-level-feedback": Policy(codec="5-level-feedback"),
    "mixed feedback": Policy(codec="5-level-feedback", size_to_binarize=10),
    "channel feedback": Policy(codec="ternary-feedback", scale_by="channel"),
    "block feedback": Policy(codec="5-level-feedback", scale_by="block:128"),
}


def exchange_of(policy, gradients, kernels, step=3, bucket_elements=1 << 22, seed=9, shapes=SHAPES):
    """Returns mean gradients, as a train step gets them."""
    layout = make_layout(NAMES, shapes, policy, bucket_elements)
    exchange, nodes = LocalExchange(len(gradients), kernels), range(len(gradients))
    step = tf.constant(step, tf.int64)
    keys = [DrawKey(tf.constant(seed, tf.uint64), step, tf.constant(node)) for node in nodes]
    codecs = make_codecs(layout, kernels)
    return exchange_gradients(gradients, codecs, exchange, keys, ["/CPU:0"] * len(keys))


@pytest.fixture(params=[*POLICIES, *WITH_MEMORY], name="policy")
def _policy(request):
    return (POLICIES | WITH_MEMORY)[request.param]


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES, indirect=True)
def test_law_1_the_mean_over_many_steps_is_the_clipped_mean_gradient(policy, kernels):
    nodes, steps = 3, 133 if policy.is_coded else 1
    gradients = gradients_of(nodes)
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
        rounding = 1e-3 if policy.grad_bits == 16 else 1e-6
        largest = MAX_CODES.get(policy.codec_name, 1)  # the examples are ternary
        noise = 5 * 0.5 / largest / np.sqrt(steps * nodes) if policy.is_coded else rounding
        np.testing.assert_allclose(total[i], node_values.mean(0), atol=noise * scale)


@pytest.mark.slow
def test_law_2_the_same_key_gives_the_same_bits(policy, kernels):
    gradients = gradients_of(2)
    assert_same_bits(
        exchange_of(policy, gradients, kernels).means, exchange_of(policy, gradients, kernels).means
    )


@pytest.mark.slow
def test_law_2_bucket_size_does_not_matter(policy, kernels):
    gradients = gradients_of(3)
    one = exchange_of(policy, gradients, kernels, bucket_elements=1 << 22)
    many = exchange_of(policy, gradients, kernels, bucket_elements=1)
    assert_same_bits(one.means, many.means)


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "clip_factor"), [(1, 2.5), (5, 0.0)])
@pytest.mark.parametrize("scale_by", ["variable", "channel"])
def test_packing_changes_no_bit(nodes, clip_factor, scale_by, kernels):
    gradients = gradients_of(nodes)
    policy = Policy(clip_factor=clip_factor, scale_by=scale_by)
    packed, plain = (
        exchange_of(dataclasses.replace(policy, codec=codec), gradients, kernels)
        for codec in ("ternary", UNPACKED)
    )
    assert_same_bits(packed.means, plain.means)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 6])
@pytest.mark.parametrize("bits", CODED_BITS)
@pytest.mark.parametrize("draws", DRAWS)
def test_law_5_the_mean_is_scale_over_nodes_times_an_integer(nodes, bits, draws, kernels):
    gradients, largest = gradients_of(nodes), MAX_CODES[codec_of(bits)]
    result = exchange_of(Policy(grad_bits=bits, draws=draws), gradients, kernels)
    for i, mean in enumerate(result.means):
        scale = np.max([np.abs(g[i].numpy()).max() for g in gradients])
        unit = scale * np.float32(1 / largest) / np.float32(nodes)
        sums = np.round(mean.numpy() / unit)
        assert np.abs(sums).max() <= nodes * largest
        np.testing.assert_array_equal(mean.numpy(), unit * sums.astype(np.float32))


SPECIAL = st.sampled_from([0.0, -0.0, 1e-45, -1e-40, 2.0**-126, 2.0**-101, 3e38, -3e38, 1.0])
SHAPES_OF_VARIABLES = st.lists(st.lists(st.integers(0, 40), max_size=2), min_size=1, max_size=4)


@pytest.mark.slow
@given(SHAPES_OF_VARIABLES, st.integers(1, 6), st.data(), st.integers(0, 2**64 - 1))
@settings(max_examples=20)
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
@pytest.mark.parametrize(("bits", "sent"), [(1, 2), (2, 3), (3, 3), (4, 4), (8, 8)])
def test_law_7_payload_is_the_bits_of_a_code_and_four_bytes_a_variable(nodes, bits, sent, kernels):
    layout = make_layout(NAMES, SHAPES, Policy(grad_bits=bits))
    found = payloads(make_codecs(layout, kernels), LocalExchange(nodes, kernels))
    padded, scales = -(-layout.size // 32) * 32, 4 * len(NAMES)
    received = plane_count(nodes * MAX_CODES[codec_of(bits)])
    assert sum(p.sent for p in found) == pytest.approx(padded * sent / 8 + scales)
    assert sum(p.received for p in found) == pytest.approx(padded * received / 8 + scales)


@pytest.mark.slow
def test_law_7_payload_is_what_encode_produces(policy, kernels):
    layout = make_layout(NAMES, SHAPES, policy)
    gradients = gradients_of(1)
    encoded = exchange_of(policy, gradients, kernels).encoded
    octets = sum(bucket.dtype.size * int(tf.size(bucket)) for codec in encoded for bucket in codec)
    scales = 4 * len(layout.scaled)
    assert sum(
        p.sent for p in payloads(make_codecs(layout, kernels), LocalExchange(1, kernels))
    ) == pytest.approx(octets + scales)


@pytest.mark.parametrize(("name", "bits"), [("float", 32), ("float16", 16)])
def test_law_7_floats_cost_their_bits(name, bits, kernels):
    layout = make_layout(NAMES, SHAPES, POLICIES[name])
    found = payloads(make_codecs(layout, kernels), LocalExchange(4, kernels))
    assert sum(p.sent for p in found) == layout.size * bits / 8


CHANNELS = dataclasses.replace(POLICIES["clipped"], scale_by="channel")


@pytest.mark.parametrize("nodes", [1, 3])
def test_each_channel_has_the_bound_and_scale_of_a_variable_of_its_own(nodes, kernels):
    gradients = gradients_of(nodes)
    (codec,) = make_codecs(make_layout(NAMES, SHAPES, CHANNELS), kernels)
    channels = range(SHAPES[2][1])
    names, shapes = [f"{i}/kernel" for i in channels], [(SHAPES[2][0],) for _ in channels]
    (alone,) = make_codecs(make_layout(names, shapes, CHANNELS), kernels)
    place = [s.variable for s in codec._bucket.segments].index(2)
    first = sum(parts.count for parts in codec.parts[:place])
    assert [parts.count for parts in codec.parts] == [1, 5, 1, 1]
    for node in gradients:
        found = codec.measure([node[i] for i in codec.variables])
        expected = alone.measure([node[2][:, i] for i in alone.variables])
        for one, other in zip(
            (found.bounds, found.scales), (expected.bounds, expected.scales), strict=True
        ):
            own = np.asarray(one)[first : first + 5]
            np.testing.assert_allclose(own, np.asarray(other)[::-1], rtol=1e-6)


@pytest.mark.parametrize("scale_by", ["channel", "block:128"])
@pytest.mark.parametrize("nodes", [1, 3])
def test_law_5_the_mean_is_an_integer_times_the_unit_of_its_part(nodes, scale_by, kernels):
    gradients = gradients_of(nodes)
    result = exchange_of(Policy(grad_bits=1, scale_by=scale_by), gradients, kernels)
    mean = result.means[2].numpy()
    values = np.abs([node[2].numpy() for node in gradients])
    if scale_by == "channel":
        scales = np.broadcast_to(values.max((0, 1)), SHAPES[2])
    else:
        flat = values.reshape(nodes, -1)
        largest = [flat[:, :128].max(), flat[:, 128:].max()]
        scales = np.repeat(largest, [128, 37]).astype(np.float32).reshape(SHAPES[2])
    units = scales / np.float32(nodes)
    sums = np.round(mean / units)
    assert np.any(sums)
    np.testing.assert_array_equal(mean, units * sums.astype(np.float32))


@pytest.mark.parametrize(
    ("codec", "clip_factor"), [("ternary", 0.0), ("ternary", 2.5), ("5-level-feedback", 0.0)]
)
def test_parts_that_are_whole_variables_change_no_bit(codec, clip_factor, kernels):
    gradients, policy = gradients_of(2), Policy(codec=codec, clip_factor=clip_factor)
    blocks = exchange_of(dataclasses.replace(policy, scale_by="block:256"), gradients, kernels)
    if not clip_factor:  # which counts in something else by variable
        assert_same_bits(blocks.means, exchange_of(policy, gradients, kernels).means)
    one_channel = lambda node: [tf.reshape(gradient, [-1, 1]) for gradient in node]
    shapes = [(math.prod(shape), 1) for shape in SHAPES]
    by_channel = exchange_of(
        dataclasses.replace(policy, scale_by="channel"),
        [one_channel(node) for node in gradients],
        kernels,
        shapes=shapes,
    )
    assert_same_bits(
        [tf.reshape(m, s) for m, s in zip(by_channel.means, SHAPES, strict=True)], blocks.means
    )


@pytest.mark.parametrize("scale_by", ["channel", "block:128"])
@pytest.mark.parametrize("outputs", [1, 4])
def test_a_part_whose_values_have_one_sign_is_not_clipped_away(scale_by, outputs, kernels):
    shape, rng = (4096, outputs), np.random.default_rng(4)
    alike = rng.normal(1.0, 0.02, shape) * np.array([3.0, -2.0, 1.0, -0.5])[:outputs]
    gradients = [[tf.constant(alike, tf.float32)] * len(NAMES)]
    policy = Policy(grad_bits=3, clip_factor=4.0, scale_by=scale_by)
    mean, *_ = exchange_of(policy, gradients, kernels, shapes=[shape] * len(NAMES)).means
    np.testing.assert_allclose(mean.numpy().mean(0), alike.mean(0), rtol=0.05)


def test_law_7_each_part_of_a_variable_costs_4_bytes(kernels):
    layout = make_layout(NAMES, SHAPES, POLICIES["channel"])
    found = payloads(make_codecs(layout, kernels), LocalExchange(1, kernels))
    padded = -(-layout.size // 32) * 32
    assert sum(p.sent for p in found) == pytest.approx(padded * 2 / 8 + 4 * (1 + 1 + 5 + 1))


def test_a_channel_that_is_not_finite_shows_in_its_scale_alone(kernels):
    gradients = gradients_of(2)
    gradients[1][2] = tf.tensor_scatter_nd_update(gradients[1][2], [[7, 3]], [np.inf])
    result = exchange_of(POLICIES["channel"], gradients, kernels)
    layout = make_layout(NAMES, SHAPES, POLICIES["channel"])
    (broken,) = np.flatnonzero(~np.isfinite(result.scales))
    assert layout.scaled[broken] == 2 and layout.scaled.index(2) == broken - 3
    losses = Losses(tf.constant(1.0), tf.constant(1.0))
    reported = not_finite(losses, tf.fill([len(layout.scaled)], np.inf), layout)
    assert reported == [f"the gradient of {NAMES[i]} is not finite" for i in layout.coded]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ternary", "5-level", "unpacked", "own scale"])
def test_the_share_of_zeros_is_counted(name, kernels):
    policy = POLICIES[name]
    layout = make_layout(NAMES, SHAPES, policy)
    gradients = gradients_of(1)
    result = exchange_of(policy, gradients, kernels)
    shares = make_codecs(layout, kernels)[0].share_of_zeros(result.encoded[0])
    for variable, share in shares.items():
        np.testing.assert_allclose(share, np.mean(result.means[variable].numpy() == 0), atol=1e-6)


def test_counting_zeros_needs_less_than_a_byte_for_a_value(kernels):
    size = 1 << 24
    codec = make_codecs(make_layout(["w"], [(size,)], Policy(grad_bits=1)), kernels)[0]
    words = np.random.default_rng(7).integers(0, 4, (size // 32, 2), np.uint32)
    words[:, 1] &= words[:, 0]
    encoded = tf.constant(words)
    shares = {}
    assert peak_bytes(lambda: shares.update(codec.share_of_zeros([encoded]))) < size
    nonzero = np.unpackbits(np.ascontiguousarray(words[:, 0]).view(np.uint8)).sum(dtype=np.int64)
    assert shares[0].numpy() == np.float32((size - nonzero) / size)


@pytest.mark.slow
def test_a_gradient_that_is_not_finite_shows_in_its_scale_alone(kernels):
    gradients = gradients_of(2)
    gradients[1][2] = tf.tensor_scatter_nd_update(gradients[1][2], [[0, 0]], [np.nan])
    result = exchange_of(Policy(grad_bits=1), gradients, kernels)
    layout = make_layout(NAMES, SHAPES, Policy(grad_bits=1))
    broken = [layout.coded[i] for i in np.flatnonzero(~np.isfinite(result.scales))]
    assert broken == [2]


@pytest.mark.slow
def test_own_scales_deliver_each_node_at_its_own_scale(kernels):
    gradients = gradients_of(2)
    gradients[1] = [0.001 * g for g in gradients[1]]
    result = exchange_of(POLICIES["own scale"], gradients, kernels)
    for i, mean in enumerate(result.means):
        scales = [np.abs(g[i].numpy()).max() for g in gradients]
        allowed = [(a * scales[0] + b * scales[1]) / 2 for a in (-1, 0, 1) for b in (-1, 0, 1)]
        distance = np.abs(mean.numpy()[..., None] - np.array(allowed))
        assert distance.min(-1).max() <= 1e-6 * scales[0]


@pytest.fixture(params=WITH_MEMORY, name="with_memory")
def _with_memory(request):
    return WITH_MEMORY[request.param]


def total(memories):
    """Returns the sum of all nodes' memories of each variable, by codec."""
    return [[np.sum(each, axis=0) for each in zip(*nodes, strict=True)] for nodes in memories]


@pytest.mark.parametrize("nodes", [1, 3])
def test_law_9_what_is_sent_and_kept_is_the_gradient_and_what_was_kept(with_memory, nodes, kernels):
    codecs = make_codecs(make_layout(NAMES, SHAPES, with_memory, 100), kernels)
    exchange = LocalExchange(nodes, kernels)
    memories = [[codec.init() for _ in range(nodes)] for codec in codecs]
    for step in range(3):
        gradients = gradients_of(nodes, seed=step)
        keys = [DrawKey(tf.constant(5, tf.uint64), step, tf.constant(n)) for n in range(nodes)]
        devices = ["/CPU:0"] * nodes
        result = exchange_gradients(gradients, codecs, exchange, keys, devices, memories)
        before, kept, unsent = map(total, (memories, result.kept, result.unsent))
        assert any(np.any(value) for values in kept for value in values)
        for codec, *held in zip(codecs, before, kept, unsent, strict=True):
            for variable, *(old, new, whole) in zip(codec.variables, *held, strict=False):
                given = np.sum([node[variable] for node in gradients], axis=0) + old
                sent = nodes * result.means[variable].numpy()
                limit = 1e-5 * np.abs(given).max()
                np.testing.assert_allclose(sent + new, given, atol=limit)
                np.testing.assert_allclose(whole, given, atol=limit)  # of a step without the node
        memories = result.kept


def test_law_10_sums_that_are_too_large_are_refused():
    exchange = LocalExchange(30_000, ReferenceKernels())
    with pytest.raises(ValueError, match=r"codes up to 3 of 30000 nodes.*reach 90000; allowed"):
        exchange.sum_codes(LocalBucket("sum", 3, list, (0,), [(32,)], tf.ones([1])))
