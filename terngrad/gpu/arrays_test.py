"""`terngrad.numpy` on arrays of a GPU: the bits of the CPU's, in arrays of the caller's kind.

The GPU is the host, see terngrad/testing/gpu.py: launches are real, kernels run in a loop.
"""

import concurrent.futures

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from terngrad import numpy as arrays
from terngrad.gpu import frameworks
from terngrad.gpu.device import LaunchError
from terngrad.layout import DRAWS, FEEDBACK_CODES, MAX_CODES
from terngrad.ops import library
from terngrad.parts import parts_of
from terngrad.testing.gpu import STREAM, HostArray, HostArrays
from terngrad.testing.gradients import drawn_gradients

CODES = {**MAX_CODES, **FEEDBACK_CODES}
shapes = st.lists(
    st.one_of(
        st.sampled_from([(), (0,), (5,), (31,), (32, 3), (3, 3, 7), (1000,), (70, 64), (9001,)]),
        st.tuples(st.integers(1, 300), st.integers(1, 20)),
    ),
    min_size=1,
    max_size=4,
)
some_numbers = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # it may stay as it is
)

pytestmark = pytest.mark.usefixtures("host_gpu")


def on_gpu(values, dtype=None):
    return [HostArray(each, dtype) for each in values]


def of_gpu(array):
    assert isinstance(array, HostArray)
    return array.values


def assert_same_bits(ours, theirs):
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    kind = np.uint32 if ours.itemsize == 4 else ours.dtype
    np.testing.assert_array_equal(ours.view(kind), theirs.view(kind))


@given(st.data())
@some_numbers
def test_law_2_arrays_on_gpus_get_the_bits_of_the_cpu(data):
    chosen = data.draw(shapes)
    gradients = drawn_gradients(data, chosen)
    by = {"scale_by": data.draw(st.sampled_from(["variable", "channel", "block:128"]))}
    count = sum(parts_of(shape, by["scale_by"]).count for shape in chosen)
    found, expected = arrays.stats(on_gpu(gradients), **by), arrays.stats(gradients, **by)
    for ours, theirs in zip(found, expected, strict=True):
        assert_same_bits(of_gpu(ours), theirs)

    some = lambda *values: np.float32([data.draw(st.sampled_from(values)) for _ in range(count)])
    bounds, factors = some(np.inf, 0.3, 0), some(1, 1.5, 9, np.inf)
    largest = np.minimum(expected.max_abs, bounds)
    scales = np.where(np.isnan(largest), np.inf, np.fmax(largest, 1e-31)).astype("f4") * factors
    codec, n = data.draw(st.sampled_from(sorted(CODES))), len(chosen)
    how = {
        "seed": data.draw(st.integers(0, 2**64 - 1)),
        "step": data.draw(st.integers(0, 2**40)),
        "variables": data.draw(
            st.lists(st.integers(0, 65535), unique=True, min_size=n, max_size=n)
        ),
        "firsts": [data.draw(st.sampled_from([0, 1, 77, 128, 2**33 + 5])) for _ in chosen],
        "codec": codec,
        "draws": data.draw(st.sampled_from(DRAWS)),
        **by,
    }
    codes = []
    for node in (0, 1, 65535):
        theirs = arrays.encode(gradients, scales, node=node, bounds=bounds, **how)
        given_as = data.draw(st.sampled_from([HostArray, np.ndarray.tolist]))
        ours = arrays.encode(
            on_gpu(gradients), given_as(scales), node=node, bounds=given_as(bounds), **how
        )
        assert_same_bits(of_gpu(ours), theirs)
        codes.append(theirs)

    planes = (2 * 3 * CODES[codec]).bit_length()
    total = arrays.sum(codes, planes)
    assert_same_bits(of_gpu(arrays.sum(on_gpu(codes), planes)), total)
    theirs = arrays.decode(total, scales, 3, chosen, codec=codec, **by)
    ours = arrays.decode(HostArray(total), HostArray(scales), 3, chosen, codec=codec, **by)
    for one, other in zip(ours, theirs, strict=True):
        assert_same_bits(of_gpu(one), other)


@pytest.mark.parametrize("codec", CODES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_read_exactly(dtype, codec):
    bits = np.random.default_rng(3).integers(0, 1 << 16, 5000).astype(np.uint16)
    if dtype == "float16":
        halves = bits.view(np.float16)
        halves = np.where(np.isfinite(halves), halves, np.float16(1))
        given_as, whole = HostArray(halves), halves.astype(np.float32)
    else:
        whole = (bits.astype(np.uint32) << 16).view(np.float32)
        bits = np.where(np.abs(whole) < 1e30, bits, 0).astype(np.uint16)
        given_as, whole = HostArray(bits, dtype), (bits.astype(np.uint32) << 16).view(np.float32)
    expected = arrays.stats([whole])
    for ours, theirs in zip(arrays.stats([given_as]), expected, strict=True):
        assert_same_bits(of_gpu(ours), theirs)
    how = {"seed": 5, "step": 2, "node": 3, "codec": codec}
    ours = arrays.encode([given_as], expected.max_abs.tolist(), **how)
    assert_same_bits(of_gpu(ours), arrays.encode([whole], expected.max_abs, **how))


def test_arrays_that_are_not_contiguous_are_taken_as_what_they_show():
    whole = np.arange(200, dtype=np.float32).reshape(10, 20)
    found = arrays.stats([HostArray(whole[::2, ::3].T)])
    assert of_gpu(found.sum) == whole[::2, ::3].sum()


def test_words_may_be_given_as_int32():
    codes = arrays.encode([np.ones(40, np.float32)], [1], seed=1, step=0, node=0)
    as_int32 = HostArray(codes.view(np.int32))
    assert of_gpu(arrays.sum([as_int32, as_int32], 3)).dtype == np.uint32
    (mean,) = arrays.decode(as_int32, [1.0], 1, [(40,)])
    assert (of_gpu(mean) == 1).all()


def test_kernels_run_on_the_stream_of_the_arrays(host_gpu):
    before = host_gpu["launches"]
    arrays.stats([HostArray(np.ones(9000, np.float32))])
    assert host_gpu["stream"] == STREAM
    assert host_gpu["launches"] == before + 2


def test_threads_do_not_disturb_each_other():
    def in_thread(node):
        values = np.random.default_rng(node).normal(size=50_000).astype(np.float32)
        how = {"seed": 1, "step": 0, "node": node}
        expected = arrays.encode([values], arrays.stats([values]).max_abs, **how)
        for _ in range(10):
            scales = arrays.stats([HostArray(values)]).max_abs
            found = of_gpu(arrays.encode([HostArray(values)], scales, **how))
            np.testing.assert_array_equal(found, expected)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(in_thread, range(4)))


def test_nothing_is_launched_for_nothing(host_gpu):
    before = host_gpu["launches"]
    empty = HostArray(np.zeros((0, 2), np.uint32))
    assert of_gpu(arrays.sum([empty], 3)).shape == (0, 3)
    assert arrays.decode(empty, [], 1, []) == []
    assert host_gpu["launches"] == before


ONE = np.ones(40, np.float32)
GPU = [HostArray(ONE)]
KEY = {"seed": 1, "step": 0, "node": 0}
WORDS = HostArray(np.zeros((2, 2), np.uint32))
AS_FIRST = "all arrays of a call must be of HostArrays on GPU 0, as"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: arrays.stats(GPU[0]), "gradients is an array; must be a list of arrays"),
        (
            lambda: arrays.stats([HostArray(np.ones(3))]),
            r"gradients\[0\] is float64; must be one of float32, float16, bfloat16",
        ),
        (
            lambda: arrays.stats([*GPU, ONE]),
            rf"gradients\[1\] is a ndarray outside of GPUs; {AS_FIRST} gradients\[0\] is",
        ),
        (
            lambda: arrays.stats([ONE, *GPU]),
            rf"gradients\[0\] is a ndarray outside of GPUs; {AS_FIRST} gradients\[1\] is",
        ),
        (
            lambda: arrays.stats([*GPU, HostArray(ONE, device=1)]),
            rf"gradients\[1\] is on GPU 1; {AS_FIRST}",
        ),
        (lambda: arrays.stats(GPU, scale_by="row"), "scale_by is 'row'; must be variable, channel"),
        (
            lambda: arrays.encode(GPU, np.float32([1]), **KEY),
            rf"scales is a ndarray outside of GPUs; {AS_FIRST} gradients\[0\] is",
        ),
        (
            lambda: arrays.encode([ONE], HostArray(np.float32([1])), **KEY),
            rf"gradients\[0\] is a ndarray outside of GPUs; {AS_FIRST} scales is",
        ),
        (
            lambda: arrays.encode(GPU, HostArray(np.float32([1, 2])), **KEY),
            r"scales is float32 \[2\]; must be float32 \[1\]",
        ),
        (lambda: arrays.encode(GPU, [1, 2], **KEY), r"scales has shape \(2,\); must have \(1,\)"),
        (lambda: arrays.encode(GPU, [-1], **KEY), r"scales\[0\] is -1.0; must not be negative"),
        (lambda: arrays.encode(GPU, [1], **KEY | {"node": 65536}), "node is 65536; must be 0 to"),
        (lambda: arrays.encode(GPU, [1], **KEY, codec="x"), "codec is 'x'; must be one of ternary"),
        (
            lambda: arrays.encode(GPU * 2, [1, 1], **KEY, variables=[7, 7]),
            r"gradients\[0\] and gradients\[1\] both have value 0 of variable 7",
        ),
        (lambda: arrays.sum([WORDS, WORDS], 2), "planes is 2; must be 3 or more for 2 nodes"),
        (lambda: arrays.sum([WORDS], 19), "planes is 19; must be 2 to 18"),
        (
            lambda: arrays.sum([WORDS, HostArray(np.zeros((3, 2), np.uint32))], 3),
            r"words\[1\] has 3 rows; must have 2",
        ),
        (
            lambda: arrays.sum([HostArray(np.zeros((3, 2)))], 3),
            r"words\[0\] is float64 \[3, 2\]; must be uint32 or int32 \[G, 2 to 18\]",
        ),
        (lambda: arrays.decode(WORDS, [1], 1, [(99,)]), "words has 2 rows; must have 4 for these"),
        (lambda: arrays.decode(WORDS, [1], 2, [(40,)]), "words has 2 planes; sums of 2 nodes have"),
        (lambda: arrays.decode(WORDS, [1], 0, [(40,)]), "nodes is 0; must be 1 to 65536"),
    ],
)
def test_law_10_what_is_not_allowed_is_named(call, text):
    with pytest.raises(ValueError, match=f"^{text}"):
        call()


def test_law_10_a_gpu_that_is_not_there_is_named():
    with pytest.raises(library.UnavailableError, match=r"^GPU 1: CUDA_ERROR_INVALID_DEVICE"):
        arrays.stats([HostArray(ONE, device=1)])


@pytest.mark.parametrize(
    ("function", "text"),
    [
        ("cuMemcpyHtoDAsync_v2", "a copy to the GPU: CUDA_ERROR_OUT_OF_MEMORY, out of memory"),
        ("cuLaunchKernel", r"terngrad_\w+: CUDA_ERROR_OUT_OF_MEMORY, out of memory"),
    ],
)
def test_law_10_a_launch_that_fails_is_named(host_gpu, function, text):
    calls = (
        lambda: arrays.stats(GPU),
        lambda: arrays.encode(GPU, HostArray(np.float32([1])), **KEY),
        lambda: arrays.decode(WORDS, HostArray(np.float32([1])), 1, [(40,)]),
        lambda: arrays.sum([WORDS], 2),
    )
    for call in calls:
        call()
        with (
            host_gpu.setting(**{f"failing_{function}": 2}),
            pytest.raises(LaunchError, match=f"^{text}"),
        ):
            call()
        call()


def test_law_10_a_stream_that_is_captured_into_a_graph_is_named(host_gpu):
    with (
        host_gpu.setting(capturing=1),
        pytest.raises(LaunchError, match=r"^the stream is being captured; a CUDA graph cannot"),
    ):
        arrays.stats(GPU)
    arrays.stats(GPU)


def test_law_10_arrays_of_other_packages_are_named():
    class Array:
        """As JAX's."""

        __module__ = "jaxlib.xla"
        __cuda_array_interface__ = HostArray(ONE).__cuda_array_interface__

    with pytest.raises(ValueError, match=r"of jaxlib; arrays on a GPU must be of CuPy or PyTorch"):
        arrays.stats([Array()])


def test_arrays_on_the_host_that_could_be_on_a_gpu_are_taken_as_before():
    class Tensor:
        """As PyTorch's: the class has the attribute, the object has it on a GPU only."""

        __module__ = "terngrad"

        def __array__(self, dtype=None, copy=None):
            return ONE

        @property
        def __cuda_array_interface__(self):
            raise AttributeError("not on a GPU")

        dtype, shape, size = ONE.dtype, ONE.shape, ONE.size

    assert frameworks.FRAMEWORKS["terngrad"] is HostArrays
    assert arrays.stats([Tensor()]).sum == 40
    Tensor.__module__ = "another"
    assert arrays.stats([Tensor()]).sum == 40
