"""NumPy arrays get the bits of the TensorFlow ops, without TensorFlow."""

import subprocess
import sys
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import terngrad.numpy as arrays
from terngrad import planes, ternary
from terngrad.draws import DrawKey, draws
from terngrad.layout import DRAWS, FEEDBACK_CODES, MAX_CODES
from terngrad.ops import array_checks, library
from terngrad.ops.native import NativeKernels
from terngrad.parts import parts_of
from terngrad.testing.gradients import drawn_gradients

try:
    PATHS = library.load_arrays().terngrad_paths().decode().split(", ")
except library.UnavailableError as error:
    pytest.skip(str(error), allow_module_level=True)

shapes = st.lists(
    st.sampled_from([(), (0,), (1,), (31,), (33,), (5, 7), (4097,), (70, 3)]),
    min_size=1,
    max_size=4,
)
CODES = {**MAX_CODES, **FEEDBACK_CODES}


@pytest.mark.parametrize("path", PATHS)
@given(st.data())
@settings(max_examples=20)
def test_law_3_arrays_get_the_bits_of_the_ops(path, data):
    with mock.patch.object(arrays, "_path", path.encode):
        for ours, theirs in _of_both(path, data):
            assert ours.shape == theirs.shape
            np.testing.assert_array_equal(ours, theirs)


def _of_both(path, data):
    """What the arrays and the ops return for the same gradients, pair by pair."""
    chosen = data.draw(shapes)
    kernels, gradients = NativeKernels(path), drawn_gradients(data, chosen)
    tensors = [tf.constant(gradient) for gradient in gradients]

    by = {"scale_by": data.draw(st.sampled_from(["variable", "channel", "block:128"]))}
    parts = [parts_of(shape, by["scale_by"]) for shape in chosen]
    found, expected = arrays.stats(gradients, **by), kernels.stats(tensors, parts)
    for ours, theirs in zip(found, expected, strict=True):
        yield ours, theirs.numpy()

    some = lambda *values: np.float32(
        [data.draw(st.sampled_from(values)) for _ in range(sum(own.count for own in parts))]
    )
    codec, antithetic = data.draw(st.sampled_from(sorted(CODES))), data.draw(st.booleans())
    small = [0.3] if codec in FEEDBACK_CODES else []  # what is above the scale is kept
    bounds, factors = some(np.inf, 0.3, 0), some(1, 1.5, 9, np.inf, *small)
    largest = np.minimum(found.max_abs, bounds)
    scales = np.where(np.isnan(largest), np.inf, np.fmax(largest, 1e-31)).astype("f4") * factors
    distinct = st.lists(
        st.integers(0, 2**16 - 1), unique=True, min_size=len(chosen), max_size=len(chosen)
    )
    variables = data.draw(distinct)
    seed, step = data.draw(st.integers(0, 2**64 - 1)), data.draw(st.integers(0, 2**40))
    codes = []
    for node in (0, 1, 65535):
        ours = arrays.encode(
            gradients,
            scales,
            seed=seed,
            step=step,
            node=node,
            bounds=bounds,
            variables=variables,
            codec=codec,
            draws=DRAWS[antithetic],
            **by,
        )
        words = tf.constant(seed, tf.uint64), tf.constant(step, tf.int64), tf.constant(node)
        vectors = tf.constant(bounds), tf.constant(scales)
        key = DrawKey(*words, antithetic)
        theirs = kernels.encode(tensors, variables, *vectors, key, codec, parts)
        yield ours, theirs.numpy()
        codes.append(ours)

    max_code = CODES[codec]
    count = planes.plane_count(3 * max_code)
    total = arrays.sum(codes, count)
    yield total, kernels.sum([tf.constant(c) for c in codes], count).numpy()
    means = arrays.decode(total, scales, 3, chosen, codec=codec, **by)
    units = tf.constant(ternary.unit(scales, max_code))
    theirs = kernels.decode(tf.constant(total), units, tf.constant(3), chosen, parts)
    for ours, tensor in zip(means, theirs, strict=True):
        yield ours.view(np.uint32), np.asarray(tensor).view(np.uint32)


FIRSTS = [1, 127, 128, 255, 1000, 2**31 - 64, 2**32 + 5, 2**40 + 77]


@pytest.mark.parametrize("path", PATHS)
def test_law_2_an_elements_code_does_not_depend_on_where_its_array_begins(path):
    values = np.random.default_rng(1).normal(size=300).astype(np.float32)
    key = DrawKey(tf.constant(7, tf.uint64), tf.constant(3, tf.int64), tf.constant(2))
    with mock.patch.object(arrays, "_path", path.encode):
        for first in FIRSTS:
            draw = {"seed": 7, "step": 3, "node": 2, "variables": [9], "firsts": [first]}
            words = arrays.encode([values], [8.0], **draw)
            random = draws(key, 9, 300, first)
            expected = ternary.draw_codes(tf.constant(values), np.inf, 8.0, random)
            np.testing.assert_array_equal(planes.unpack(tf.constant(words))[:300], expected)


@pytest.mark.parametrize("path", PATHS)
def test_law_2_a_part_of_a_variable_gets_the_codes_that_the_whole_has(path):
    values = np.random.default_rng(2).normal(size=1000).astype(np.float32)
    draw, parts = {"seed": 7, "step": 3, "node": 2}, [values[:333], values[333:]]
    with mock.patch.object(arrays, "_path", path.encode):
        whole = arrays.encode([values], [2.0], bounds=[1.5], variables=[4], **draw)
        both = {"bounds": [1.5, 1.5], "variables": [4, 4], "firsts": [0, 333]}
        np.testing.assert_array_equal(arrays.encode(parts, [2.0, 2.0], **both, **draw), whole)


def test_views_are_taken_as_what_they_show():
    whole = np.arange(200, dtype=np.float32).reshape(10, 20)
    (ours,) = arrays.stats([whole[::2, ::3].T]).sum
    assert ours == whole[::2, ::3].sum()


def codes_of(*values, planes=2):
    """Codes, or sums, of a bucket of 40 values: first these, then zeros."""
    padded = np.zeros(64, np.int64)
    padded[: len(values)] = values
    bits = [padded.reshape(2, 32) >> plane & 1 for plane in range(planes)]
    words = [(each << np.arange(32)).sum(1) for each in bits]
    return np.stack(words, 1).astype(np.uint32)


ONE = [np.ones(40, np.float32)]
KEY = {"seed": 1, "step": 0, "node": 0}
PLUS, MINUS = codes_of(1), codes_of(-1)


def test_sums_take_the_planes_that_their_values_need():
    assert arrays.sum([PLUS, PLUS, PLUS], 3).tolist() == codes_of(3, planes=3).tolist()
    wide = codes_of(5, -4, planes=8)
    assert arrays.sum([wide, PLUS, MINUS], 4).tolist() == codes_of(5, -4, planes=4).tolist()
    codes = codes_of(20_000, -20_000, 7, planes=18)
    assert arrays.sum([codes] * 3, 17).tolist() == codes_of(60_000, -60_000, 21, planes=17).tolist()
    assert arrays.sum(np.stack([PLUS, PLUS]), 3).tolist() == codes_of(2, planes=3).tolist()


@pytest.mark.parametrize(
    ("planes", "limit"), [(2, 1), (3, 1), (3, 2), (3, 3), (8, 1), (8, 6), (8, 127)]
)
def test_a_value_beyond_a_limit_is_seen_at_either_sign(planes, limit):
    beyond = [v for v in (limit + 1, -limit - 1, -(1 << (planes - 1))) if v < 1 << (planes - 1)]
    assert not array_checks.exceed(codes_of(limit, -limit, 0, planes=planes), limit)
    for value in beyond:
        assert array_checks.exceed(codes_of(0, limit, value, planes=planes), limit)


def decode(words, nodes, shapes=((40,),), scales=(1,)):
    return arrays.decode(words, scales, nodes, shapes)


@pytest.mark.parametrize("kind", [np.uint8, np.int64])
def test_the_number_of_nodes_may_be_of_numpy(kind):
    (found,) = decode(codes_of(1, -200, planes=9), kind(200))
    assert found[:3].tolist() == [np.float32(1 / 200), -1, 0]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: arrays.stats([np.ones(3)]), r"gradients\[0\] is float64; must be float32"),
        (lambda: arrays.stats(ONE[0]), "gradients is an array; must be a list of float32 arrays"),
        (lambda: arrays.stats(ONE, scale_by="row"), "scale_by is 'row'; must be variable, channel"),
        (
            lambda: arrays.encode([np.ones((16, 2), "f4")], [1], **KEY, scale_by="channel"),
            r"scales has shape \(1,\); must have \(2,\)",
        ),
        (lambda: arrays.encode(ONE[0], [1] * 40, **KEY), "gradients is an array; must be a list"),
        (lambda: arrays.encode(ONE, [1, 2], **KEY), r"scales has shape \(2,\); must have \(1,\)"),
        (lambda: arrays.encode(ONE, [-1], **KEY), r"scales\[0\] is -1.0; must not be negative"),
        (
            lambda: arrays.encode(ONE, [1], **KEY, bounds=[-2]),
            r"bounds\[0\] is -2.0; must not be n",
        ),
        (
            lambda: arrays.encode(ONE, [0.5], **KEY),
            r"scales\[0\] is 0.5; must be 1.0 or more, the largest magnitude of its values",
        ),
        (lambda: arrays.encode(ONE, [0], **KEY, bounds=[0.25]), "is 0.0; must be 0.25 or more"),
        (
            lambda: arrays.encode([np.float32([np.nan, 1])], [1], **KEY, bounds=[1]),
            r"scales\[0\] is 1.0; must be inf or more, the largest magnitude of its values",
        ),
        (
            lambda: arrays.encode([np.float32([np.nan, 1])], [np.nan], **KEY),
            r"scales\[0\] is nan; must be inf or more",
        ),
        (lambda: arrays.encode(ONE, [1], **KEY | {"node": 65536}), "node is 65536; must be 0 to 6"),
        (lambda: arrays.encode(ONE, [1], **KEY | {"seed": -1}), "seed is -1; must be 0 to 1844"),
        (lambda: arrays.encode(ONE, [1], **KEY, variables=[]), "variables has 0 entries; must"),
        (
            lambda: arrays.encode(ONE * 3, [1] * 3, **KEY, variables=[7, 6, 7], firsts=[0, 9, 39]),
            r"gradients\[0\] and gradients\[2\] both have value 39 of variable 7; allowed is one",
        ),
        (lambda: arrays.sum([], 2), "words has no arrays"),
        (lambda: arrays.sum([PLUS], 19), "planes is 19; must be 2 to 18"),
        (lambda: arrays.sum([PLUS, PLUS[:1]], 3), r"words\[1\] has 1 rows; must have 2"),
        (lambda: arrays.sum([PLUS[0]], 2), r"words\[0\] is uint32 \[2\]; must be uint32 \[G, 2"),
        (lambda: arrays.sum([PLUS] * 3, 2), "planes is 2; must be 3 or more for 3 nodes"),
        (lambda: arrays.sum([PLUS, MINUS], 2), "planes is 2; must be 3 or more for 2 nodes"),
        *(
            (lambda n=n, v=v: arrays.sum([codes_of(v, planes=18)] * n, 18), "beyond 65536; sums")
            for n in (2, 3, 4, 5)
            for v in (65536, -65536)
        ),
        (
            lambda: arrays.sum([codes_of(3, planes=3)] * 2, 3),
            "planes is 3; must be more: the sum has a value beyond 3",
        ),
        (lambda: arrays.sum([codes_of(-2)], 2), r"words\[0\] has a value beyond 1; codes and"),
        (lambda: decode(PLUS, 1, [(99,)]), "words has 2 rows; must have 4 for these"),
        (lambda: decode(codes_of(*[1] * 40), 1, [(39,)]), "words has more values than the 39"),
        (lambda: decode(PLUS, 1, (40,)), r"shapes\[0\] is 40; must be a tuple of integers"),
        (lambda: decode(PLUS, 0), "nodes is 0; must be 1 to 65536"),
        (
            lambda: arrays.decode(PLUS, [1], 517, [(40,)], codec="255-level"),
            "nodes is 517; must be 1 to 516",
        ),
        (lambda: decode(codes_of(3, planes=3), 30), "words has 3 planes; sums of 30 nodes have 6"),
        (
            lambda: decode(codes_of(-3, planes=3), 2),
            "has a value beyond 2; sums of 2 nodes have no",
        ),
        (lambda: decode(PLUS, 1, scales=[-1]), r"scales\[0\] is -1.0; must not be negative"),
    ],
)
def test_law_10_what_is_not_allowed_is_named(call, text):
    with pytest.raises(ValueError, match=text):
        call()


def test_law_10_a_library_that_is_missing_or_cut_off_is_named(tmp_path):
    with pytest.raises(library.UnavailableError, match=r"arrays are not built; `python -m terng"):
        library.load_arrays(str(tmp_path))
    with open(library.arrays_path(), "rb") as file:
        (tmp_path / library.arrays_path("").rpartition("/")[2]).write_bytes(file.read()[:5000])
    with pytest.raises(library.UnavailableError, match="is damaged"):
        library.load_arrays(str(tmp_path))


def test_law_10_an_instruction_set_that_the_environment_names_is_taken_or_refused(monkeypatch):
    monkeypatch.setenv("TERNGRAD_SIMD", "portable")
    assert arrays._path.__wrapped__() == b"portable"
    monkeypatch.setenv("TERNGRAD_SIMD", "mmx")
    with pytest.raises(ValueError, match=r"TERNGRAD_SIMD: path is 'mmx'; allowed are .*portable"):
        arrays._path.__wrapped__()


def test_tensorflow_is_not_loaded():
    code = (
        "import sys, numpy, terngrad.numpy as arrays\n"
        "ones = [numpy.ones(40, 'f4')]\n"
        "codes = arrays.encode(ones, arrays.stats(ones).max_abs, seed=1, step=0, node=0)\n"
        "(mean,) = arrays.decode(arrays.sum([codes, codes], 3), [1], 2, [(40,)])\n"
        "assert (mean == 1).all()\n"
        "assert 'tensorflow' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_asking_for_the_paths_runs_no_op(capfd):
    with pytest.raises(ValueError, match=r"path is 'mmx'; allowed are .*portable$"):
        NativeKernels("mmx")
    assert "rendezvous" not in capfd.readouterr().err
