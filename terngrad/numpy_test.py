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
from terngrad.draws import DrawKey
from terngrad.ops import library
from terngrad.ops.native import NativeKernels

try:
    PATHS = library.load_arrays().terngrad_paths().decode().split(", ")
except library.UnavailableError as error:
    pytest.skip(str(error), allow_module_level=True)

shapes = st.lists(
    st.sampled_from([(), (0,), (1,), (31,), (33,), (5, 7), (4097,)]), min_size=1, max_size=4
)
edges = st.sampled_from([0.0, -0.0, 1e-45, -1e-40, 2.0**-126, 1e-20, 3.4e38, np.inf, np.nan])


def _gradients(data, chosen):
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    gradients = [np.asarray(rng.normal(size=shape), np.float32) for shape in chosen]
    for gradient in gradients:
        if gradient.size > 1 and data.draw(st.booleans()):
            gradient.reshape(-1)[-1] = data.draw(edges)
    return gradients


@pytest.mark.parametrize("path", PATHS)
@given(st.data())
@settings(max_examples=20, deadline=None)
def test_law_3_arrays_get_the_bits_of_the_ops(path, data):
    with mock.patch.object(arrays, "_path", path.encode):
        for ours, theirs in _of_both(path, data):
            assert ours.shape == theirs.shape
            np.testing.assert_array_equal(ours, theirs)


def _of_both(path, data):
    """What the arrays and the ops return for the same gradients, pair by pair."""
    chosen = data.draw(shapes)
    kernels, gradients = NativeKernels(path), _gradients(data, chosen)
    tensors = [tf.constant(gradient) for gradient in gradients]

    expected = kernels.stats(tensors)
    for ours, theirs in zip(arrays.stats(gradients), expected, strict=True):
        yield ours, theirs.numpy()

    scales = np.float32([data.draw(st.sampled_from([0, 1e-31, 0.5, 3, np.inf])) for _ in chosen])
    bounds = np.float32([data.draw(st.sampled_from([np.inf, 0.3])) for _ in chosen])
    variables = [data.draw(st.integers(0, 2**16 - 1)) for _ in chosen]
    firsts = [data.draw(st.integers(0, 1000)) for _ in chosen]
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
            firsts=firsts,
        )
        key = DrawKey(tf.constant(seed, tf.uint64), tf.constant(step, tf.int64), tf.constant(node))
        theirs = kernels.encode(
            tensors, variables, tf.constant(bounds), tf.constant(scales), key, firsts
        )
        yield ours, theirs.numpy()
        codes.append(ours)

    total = arrays.sum(codes, 3)
    yield total, kernels.sum([tf.constant(c) for c in codes], 3).numpy()
    means = arrays.decode(total, scales, 3, chosen)
    theirs = kernels.decode(tf.constant(total), tf.constant(scales), tf.constant(3), chosen)
    for ours, tensor in zip(means, theirs, strict=True):
        yield ours.view(np.uint32), np.asarray(tensor).view(np.uint32)


def test_views_are_taken_as_what_they_show():
    whole = np.arange(200, dtype=np.float32).reshape(10, 20)
    (ours,) = arrays.stats([whole[::2, ::3].T]).sum
    assert ours == whole[::2, ::3].sum()


ONE = [np.ones(40, np.float32)]
KEY = {"seed": 1, "step": 0, "node": 0}
WORDS = np.zeros((2, 2), np.uint32)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: arrays.stats([np.ones(3)]), r"gradients\[0\] is float64; must be float32"),
        (lambda: arrays.encode(ONE, [1, 2], **KEY), r"scales has shape \(2,\); must have \(1,\)"),
        (lambda: arrays.encode(ONE, [1], **KEY | {"node": 65536}), "node is 65536; must be 0 to 6"),
        (lambda: arrays.encode(ONE, [1], **KEY | {"seed": -1}), "seed is -1; must be 0 to 1844"),
        (lambda: arrays.encode(ONE, [1], **KEY, variables=[]), "variables has 0 entries; must"),
        (lambda: arrays.sum([], 2), "words has no arrays"),
        (lambda: arrays.sum([WORDS], 19), "planes is 19; must be 1 to 18"),
        (lambda: arrays.sum([WORDS, WORDS[:1]], 2), r"words\[1\] has 1 rows; must have 2"),
        (
            lambda: arrays.sum([WORDS[0]], 2),
            r"words\[0\] is uint32 \[2\]; must be uint32 \[G, 1",
        ),
        (lambda: arrays.decode(WORDS, [1], 1, [(99,)]), "words has 2 rows; must have 4 for these"),
        (lambda: arrays.decode(WORDS, [1], 0, [(64,)]), "nodes is 0; must be 1 to 65536"),
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
