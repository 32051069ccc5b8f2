"""Law 3: every implementation of the arithmetic gives the same bits."""

import gc
import os

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from terngrad import allocator, planes, ternary
from terngrad.draws import draws
from terngrad.ops import library
from terngrad.ops.gradient_kernels import Sums, Update
from terngrad.ops.native import NativeKernels
from terngrad.ops.reference import ReferenceKernels
from terngrad.parts import Parts
from terngrad.ternary import ENCODERS
from terngrad.testing.gradients import (
    assert_equal_with_signs,
    edge_values,
    key_of,
    normal,
    scales,
    seeds,
    sizes,
)

REFERENCE = ReferenceKernels()
INFINITY = np.float32(np.inf)
anything = st.floats(width=32)


def encode(kernels, gradients, variables, bounds, scales, key, encoder="ternary"):
    """Encodes inside a tf.function, as training does."""
    arguments = [tf.constant(g, tf.float32) for g in gradients]
    vectors = [tf.constant(v, tf.float32) for v in (bounds, scales)]
    run = lambda g, b, s: kernels.encode(g, variables, b, s, key, encoder)
    return tf.function(run, autograph=False)(arguments, *vectors).numpy()


@pytest.mark.slow
@given(st.lists(sizes, min_size=1, max_size=4), st.data(), seeds)
@settings(max_examples=40)
def test_law_3_codes_equal_the_references(natives, lengths, data, seed):
    gradients = [normal(seed % 2**32 + i, n) for i, n in enumerate(lengths)]
    for values in gradients:
        for i in range(min(3, values.size)):
            values[i * 7 % values.size] = data.draw(edge_values | anything)
    variables = [data.draw(st.integers(0, 2**16 - 1)) for _ in lengths]
    bounds = [data.draw(st.sampled_from([INFINITY, 2.5, 0.1])) for _ in lengths]
    chosen = [data.draw(scales) for _ in lengths]
    key = key_of(
        seed,
        data.draw(st.integers(0, 2**40)),
        data.draw(st.integers(0, 2**16 - 1)),
        data.draw(st.booleans()),
    )
    encoder = data.draw(st.sampled_from(sorted(ENCODERS)))
    arguments = (gradients, variables, bounds, chosen, key, encoder)
    expected = encode(REFERENCE, *arguments)
    assert expected.shape[1] == planes.plane_count(ENCODERS[encoder].max_code)
    for native in natives:
        np.testing.assert_array_equal(encode(native, *arguments), expected, native.title)


@pytest.mark.slow
@pytest.mark.parametrize("antithetic", [False, True])
@pytest.mark.parametrize("encoder", ENCODERS)
def test_law_3_every_encoder_gives_the_references_codes(natives, encoder, antithetic):
    values = [1.3 * normal(1, 70_000), np.zeros(33, np.float32), normal(2, 129)]
    arguments = (values, [5, 0, 9], [2.5, 1.0, INFINITY], [2.5, 1.0, 5.0])
    for node in (6, 7):
        key = key_of(node=node, antithetic=antithetic)
        expected = encode(REFERENCE, *arguments, key, encoder)
        for native in natives:
            got = encode(native, *arguments, key, encoder)
            np.testing.assert_array_equal(got, expected, native.title)


# Variables of several parts, of one, of ranges, and of fewer and more values than a vector has.
PARTS = {
    "channels": [(100, Parts(1, 2)), (33, Parts()), (4097, Parts(1, 16)), (1000, Parts(1, 250))],
    "odd channels": [(9999, Parts(1, 33)), (257, Parts(1, 15)), (70000, Parts(1, 4099))],
    "blocks": [(1000, Parts(128, 8)), (31, Parts()), (9999, Parts(4224, 3)), (300, Parts(256, 2))],
    "ranges": [(100, Parts(1, 7, 3)), (500, Parts(128, 5, 77)), (1000, Parts(1, 33, 32))],
}


@pytest.mark.slow
@pytest.mark.parametrize("planes_of_codes", [2, 3])
@pytest.mark.parametrize("kind", PARTS)
def test_law_3_what_a_memory_adds_and_keeps_equals_the_references(natives, kind, planes_of_codes):
    """Also of special values, and of units that count as 0 or are infinite."""
    sizes_, parts = zip(*PARTS[kind], strict=True)
    parts = [own._replace(first=0) for own in parts]  # statistics are of whole ones
    values, memory = ([normal([j, i], n) for i, n in enumerate(sizes_)] for j in range(2))
    for one in values:
        one[:5] = [-0.0, 1e-40, 2.0**-126, 1e38, -2.0]
    rng = np.random.default_rng(3)
    groups, total = planes.padded(sum(sizes_)) // 32, sum(own.count for own in parts)
    words = rng.integers(0, 2**32, (groups, planes_of_codes), np.uint32)
    units = rng.choice([0.0, 2.0**-101, 2.0**-100, 0.5, 3.4e38, np.inf, np.nan], total)
    units[0] = np.inf

    def run(kernels):
        def both(values, memory, words, units):
            corrected, stats = kernels.correct(values, memory, parts)
            return corrected, stats.max_abs, kernels.subtract(corrected, words, units, parts)

        inputs = [[tf.constant(each) for each in one] for one in (values, memory)]
        inputs += [tf.constant(words), tf.constant(units, tf.float32)]
        return tf.nest.flatten(tf.function(both, autograph=False)(*inputs))

    expected = run(REFERENCE)
    assert not np.any(expected[-len(values)][0])  # of an infinite unit
    for native in natives:
        assert_equal_with_signs(run(native), expected, native.title)
        both = native.correct(values, memory, parts)
        alone = native.stats(both[0], parts)
        for one, other in zip(both[1], alone, strict=True):
            np.testing.assert_array_equal(one, other)


def numbers_of(parts, seed, low=0.5):
    """A number for each part: float32 [p]."""
    rng = np.random.default_rng(seed)
    return rng.uniform(low, 3.0, sum(each.count for each in parts)).astype(np.float32)


@pytest.mark.parametrize(
    ("case", "encoder", "antithetic"),
    [
        *((case, "ternary", False) for case in PARTS),
        ("channels", "ternary", True),
        ("channels", "5-level", True),
        ("odd channels", "255-level", False),
        ("blocks", "15-level", False),
    ],
)
def test_law_3_parts_get_the_references_codes_means_and_updates(natives, case, encoder, antithetic):
    sizes, parts = zip(*PARTS[case], strict=True)
    gradients = [tf.constant(normal(size, size)) for size in sizes]
    bounds, scales = numbers_of(parts, 1), numbers_of(parts, 2, 0.0)
    scales[::7] = np.resize([1e-30, 0.0, np.inf, np.nan, 2.0**-101], len(scales[::7]))
    vectors, key = (tf.constant(bounds), tf.constant(scales)), key_of(antithetic=antithetic)
    run = lambda kernels: kernels.encode(
        gradients, range(len(sizes)), *vectors, key, encoder, parts
    )
    words = tf.function(lambda: run(REFERENCE), autograph=False)()
    shapes, nodes = [(size,) for size in sizes], tf.Variable(3)
    decode = lambda kernels: kernels.decode(
        words, tf.constant(bounds), nodes.read_value(), shapes, parts
    )
    means = tf.function(lambda: decode(REFERENCE), autograph=False)()
    for native in natives:
        np.testing.assert_array_equal(run(native), words, native.title)
        assert_equal_with_signs(decode(native), means, native.title)
        weights, velocities = ([tf.Variable(tf.ones(s)) for s in shapes] for _ in range(2))
        halving = Update("momentum", tf.constant(0.5), 0.5)
        sums = Sums(tuple(range(len(sizes))), words, tf.constant(bounds), tf.constant(3), parts)
        native.apply_update(sums, weights, [velocities], halving)
        for mean, weight, velocity in zip(means, weights, velocities, strict=True):
            np.testing.assert_array_equal(velocity, 0.5 + mean)
            np.testing.assert_array_equal(weight, 1.0 - 0.5 * (0.5 + mean))


@pytest.mark.parametrize("case", ["channels", "odd channels", "blocks"])
def test_law_3_stats_of_parts_are_the_references_to_1e_6(natives, case):
    sizes, parts = zip(*PARTS[case], strict=True)
    gradients = [tf.constant(normal(size, size)) for size in sizes]
    expected = REFERENCE.stats(gradients, parts)
    magnitudes = REFERENCE.stats([tf.abs(gradient) for gradient in gradients], parts).sum
    first = natives[0].stats(gradients, parts)
    for native in natives:
        got = native.stats(gradients, parts)
        assert np.all(np.abs(got.sum - expected.sum) <= 1e-6 * magnitudes)
        np.testing.assert_allclose(got.sum_of_squares, expected.sum_of_squares, rtol=1e-6)
        np.testing.assert_array_equal(got.max_abs, expected.max_abs)
        for one, other in zip(got, first, strict=True):
            np.testing.assert_array_equal(one, other)  # on every path


def test_law_3_one_part_is_the_variable_whatever_it_is_called(natives):
    gradient = tf.constant(normal(1, 9999))
    for native in natives:
        plain = native.stats([gradient])
        for parts in (Parts(), Parts(1, 1), Parts(9999, 1), Parts(1 << 20, 1)):
            for one, other in zip(native.stats([gradient], [parts]), plain, strict=True):
                np.testing.assert_array_equal(one, other)


def test_law_2_a_range_of_a_variable_has_the_codes_and_means_of_the_whole(native):
    """Of channels, and of blocks cut anywhere."""
    values, first = normal(5, 5000), 1111
    for whole, part in [
        (Parts(1, 33), Parts(1, 33, first)),
        (Parts(128, 40), Parts(128, 40, first)),
    ]:
        scales = tf.constant(numbers_of([whole], 3))
        words = native.encode([values], [4], 3.0 * scales, 4.0 * scales, key_of(), parts=[whole])
        codes = planes.unpack(words)[first : first + 2000]
        own = planes.pack_integers(tf.pad(codes, [[0, 2016 - 2000]]), 2)
        nodes = tf.constant(3)
        (means,) = native.decode(words, scales, nodes, [(5000,)], [whole])
        (found,) = native.decode(own, scales, nodes, [(2000,)], [part])
        np.testing.assert_array_equal(found, means[first : first + 2000])


@pytest.mark.parametrize("share", [2.0**-24, 2.0**-16, 0.1, 0.5, 1.0])
def test_law_3_ties_of_the_upper_16_bits_are_settled_alike(native, share):
    values = np.full(1 << 19, share, np.float32)
    arguments = ([values], [5], [INFINITY], [1.0], key_of())
    expected = encode(REFERENCE, *arguments)
    np.testing.assert_array_equal(encode(native, *arguments), expected)
    kept = sum(int(word).bit_count() for word in expected[:, 0])
    assert abs(kept - share * values.size) <= 5 * np.sqrt(share * values.size) + 1


@given(
    st.integers(0, 70),
    st.lists(st.integers(1, 18), min_size=1, max_size=6),
    st.integers(1, 18),
    seeds,
)
@settings(max_examples=60)
def test_law_3_sums_equal_the_references_whatever_the_words_are(native, groups, ks, count, seed):
    rng = np.random.default_rng(seed)
    words = [tf.constant(rng.integers(0, 2**32, (groups, k), np.uint32)) for k in ks]
    got, expected = native.sum(words, count), REFERENCE.sum(words, count)
    assert got.shape == (groups, count)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.slow
@given(st.lists(sizes, min_size=1, max_size=4), st.integers(2, 18), st.data(), seeds)
@settings(max_examples=60)
def test_law_3_means_equal_the_references_whatever_the_words_are(natives, lengths, k, data, seed):
    groups = planes.padded(sum(lengths)) // 32
    rng = np.random.default_rng(seed)
    words = tf.constant(rng.integers(0, 2**32, (groups, k), np.uint32))
    chosen = tf.constant([data.draw(scales) for _ in lengths], tf.float32)
    nodes = tf.Variable(data.draw(st.integers(1, 65536)), dtype=tf.int32)
    shapes = [(n,) for n in lengths]
    expected = tf.function(lambda: REFERENCE.decode(words, chosen, nodes.read_value(), shapes))()
    for native in natives:
        got = native.decode(words, chosen, nodes.read_value(), shapes)
        assert_equal_with_signs(got, expected, native.title)


@pytest.mark.slow
@given(st.binary(max_size=4096), st.integers(1, 18), st.integers(1, 300))
@settings(max_examples=60)
def test_random_bytes_decode_to_values_in_range_or_an_error(kernels, data, k, nodes):
    words = np.frombuffer(data[: len(data) // 4 * 4], np.uint32)
    words = tf.constant(words[: words.size // k * k].reshape(-1, k))
    elements = 32 * words.shape[0]
    limit = float(1 << (k - 1)) / nodes
    (mean,) = kernels.decode(words, tf.constant([1.0]), tf.constant(nodes), [(elements,)])
    assert np.all(np.abs(mean) <= limit * (1 + 1e-6))
    assert planes.unpack(kernels.sum([words, words], k)).shape == (elements,)


@given(st.lists(sizes, min_size=1, max_size=5), st.integers(-12, 12), seeds)
@settings(max_examples=40)
def test_law_3_stats_are_the_references_to_1e_6(native, lengths, exponent, seed):
    gradients = [normal(seed % 2**32 + i, n) * 10.0**exponent for i, n in enumerate(lengths)]
    tensors = [tf.constant(g, tf.float32) for g in gradients]
    got, expected = native.stats(tensors), REFERENCE.stats(tensors)
    magnitudes = [np.abs(g, dtype=np.float64).sum() for g in gradients]
    assert np.all(np.abs(got.sum - expected.sum) <= 1e-6 * np.array(magnitudes))
    np.testing.assert_allclose(got.sum_of_squares, expected.sum_of_squares, rtol=1e-6)
    np.testing.assert_array_equal(got.max_abs, expected.max_abs)


def test_stats_of_edge_values(native):
    rows = [[], [0.0, -0.0], [1e-45, -1e-40], [1.0, np.nan, -3.0], [-np.inf, 1.0], [3e38, 3e38]]
    stats = native.stats([tf.constant(row, tf.float32) for row in rows])
    np.testing.assert_array_equal(stats.max_abs, np.float32([0, 0, 0, np.nan, np.inf, 3e38]))
    bounds = ternary.clip_bound(stats, tf.constant([len(row) for row in rows], tf.float32), 2.5)
    found = ternary.local_scale(stats, bounds)
    np.testing.assert_array_equal(found, np.float32([0, 0, 0, np.inf, np.inf, 3e38]))


def test_law_2_stats_have_the_same_bits_on_every_path_and_number_of_threads(native):
    values = normal(3, 1_000_003)
    expected = [block_sum(values, power).astype(np.float32) for power in (1, 2)]
    stats = native.stats([tf.constant(values)])
    assert [stats.sum.numpy()[0], stats.sum_of_squares.numpy()[0]] == expected


def block_sum(values, power):
    """Adds in the kernels' order: 64 rows of float32 in each 4096 values, then float64 in order."""
    total = np.float64(0)
    for start in range(0, values.size, 4096):
        block = np.zeros(4096, np.float32)
        block[: min(4096, values.size - start)] = values[start : start + 4096] ** power
        rows = np.zeros(64, np.float32)
        for row in block.reshape(-1, 64):
            rows += row
        total += np.cumsum(rows, dtype=np.float64)[-1]
    return total


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"parts": [Parts(1, 0)]}, "parts are 1, 0, 0; allowed are 1, 1, 0 and more"),
        ({"parts": [Parts()] * 2}, "parts has 6 entries; allowed are 0 and 3 n = 3"),
        ({"parts": [Parts(1, 2)]}, r"(bounds|scales) is \[1\]; allowed is \[2\]"),
        ({"bounds": [1.0, 2.0]}, r"(bounds|scales) is \[2\]; allowed is \[1\]"),
        ({"scales": [[1.0]]}, r"(bounds|scales) is \[1,1\]; allowed is \[1\]"),
        ({"variables": [1 << 16]}, "variable is 65536; allowed are 0 to 65535"),
        ({"variables": [1, 2]}, "variables has 2 entries; allowed are n = 1"),
        ({"node": 1 << 16}, "node is 65536; allowed are 0 to 65535"),
    ],
)
def test_law_10_encoding_names_what_does_not_fit(native, change, text):
    given_values = {"bounds": [1.0], "scales": [1.0], "variables": [0], "node": 0, "parts": ()}
    given_values |= change
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=text):
        native.encode(
            [tf.ones([5])],
            given_values["variables"],
            tf.constant(given_values["bounds"]),
            tf.constant(given_values["scales"]),
            key_of(node=given_values["node"]),
            parts=given_values["parts"],
        )


@pytest.mark.parametrize("shape", [(3, 2), (1, 19), (2, 0), (2,)])
def test_law_10_decoding_refuses_words_of_another_bucket(native, shape):
    words = tf.zeros(shape, tf.uint32)
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match="shape of words is"):
        native.decode(words, tf.ones([1]), tf.constant(1), [(33,)])


@pytest.mark.parametrize("shapes", [[(3, 2), (4, 2)], [(3, 19)], [(3,)], [(3, 0)]])
def test_law_10_summing_refuses_words_that_do_not_fit(native, shapes):
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError)):
        native.sum([tf.zeros(shape, tf.uint32) for shape in shapes], 3)


@pytest.mark.parametrize("nodes", [0, -3])
def test_law_10_decoding_refuses_no_nodes(native, nodes):
    with pytest.raises(tf.errors.InvalidArgumentError, match="nodes must be"):
        native.decode(tf.zeros([1, 2], tf.uint32), tf.ones([1]), tf.constant(nodes), [(5,)])


def test_shapes_are_known_while_tracing(native):
    @tf.function
    def run():
        gradients, ones = [tf.ones([33]), tf.ones([2, 4])], tf.ones([2])
        words = native.encode(gradients, [0, 1], ones, ones, key_of())
        total = native.sum([words, words], 3)
        means = native.decode(total, tf.ones([2]), tf.constant(2), [(33,), (2, 4)])
        assert words.shape == (2, 2)
        assert total.shape == (2, 3)
        assert [tuple(mean.shape) for mean in means] == [(33,), (2, 4)]
        return means

    assert [tuple(mean.shape) for mean in run()] == [(33,), (2, 4)]


def native_or_skip():
    try:
        return NativeKernels()
    except library.UnavailableError as error:
        pytest.skip(str(error))


def available_bytes():
    with open("/proc/meminfo", encoding="ascii") as file:
        fields = dict(line.split(":") for line in file)
    return int(fields["MemAvailable"].split()[0]) * 1024


@pytest.fixture
def memory_given_back():
    """Gives what a test freed back to the kernel; malloc may be set to keep it."""
    yield
    gc.collect()
    allocator.give_back()


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.usefixtures("memory_given_back")
def test_a_variable_of_more_than_2_pow_31_values():
    if not os.path.exists("/proc/meminfo") or available_bytes() < 16 << 30:
        pytest.skip("needs 16 GB of memory")
    native = native_or_skip()
    size, last = (1 << 31) + 333, 200
    values = tf.fill([size], 0.5)
    one = tf.constant([1.0])
    words = native.encode([values], [3], one, one, key_of())
    assert native.stats([values]).sum.numpy()[0] == np.float32(0.5 * size)
    random = draws(key_of(), 3, last, first=size - last)
    codes = ternary.draw_codes(values[-last:], one[0], one[0], random)
    del values
    total = native.sum([words, words], 3)
    (means,) = native.decode(total, one, tf.constant(2), [(size,)])
    np.testing.assert_array_equal(means[-last:], codes)
