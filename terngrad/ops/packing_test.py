"""Laws 3, 5 and 10 of codes in memory: each implementation packs and adds them alike."""

import numpy as np
import pytest
import tensorflow as tf

from terngrad import planes, prefix_code
from terngrad.ops.reference import ReferenceKernels


@pytest.mark.parametrize("groups", [0, 1, 17, 1000])
@pytest.mark.parametrize("offset", [0, 1])
def test_law_3_sums_in_memory_equal_those_of_tensors(kernels, groups, offset):
    rng = np.random.default_rng(groups)
    words = rng.integers(0, 2**32, (5, groups, 3), np.uint32)
    buffers = [memoryview(bytes(offset) + each.tobytes())[offset:] for each in words]
    got = np.frombuffer(kernels.packing.sum_buffers(buffers, 3, 6), np.uint32).reshape(groups, 6)
    np.testing.assert_array_equal(
        got, ReferenceKernels().sum([tf.constant(each) for each in words], 6)
    )


@pytest.mark.parametrize("groups", [0, 1, 17, 1000])
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize(("workers", "planes"), [(2, 2), (4, 3), (16, 5)])
def test_law_5_a_sum_without_one_part_is_the_sum_of_the_others(
    kernels, groups, offset, workers, planes
):
    codes = [codes_of(groups, worker) for worker in range(workers)]
    buffers = [memoryview(bytes(offset) + each.tobytes())[offset:] for each in codes]
    total = kernels.packing.sum_buffers(buffers, 2, planes)  # may exceed what the planes hold
    for worker in (0, workers - 1):
        others = kernels.packing.sum_buffers(buffers[:worker] + buffers[worker + 1 :], 2, planes)
        rest = kernels.packing.difference_buffers(total, buffers[worker], 2, planes)
        assert bytes(rest) == bytes(others)


def sums_of_codes(rows, largest, density):
    """Planes of integers of which the more are zero the smaller `density` is: uint32 [rows, k].

    Up to 31 levels they are sums of ternary codes, a share of which is not zero.
    """
    random = np.random.default_rng(rows)
    if largest > 31:
        integers = np.rint(random.laplace(0, density * largest / 2, 32 * rows))
        integers = np.clip(integers, -largest, largest)
    else:
        codes = np.sign(random.normal(size=(largest, 32 * rows)))
        integers = np.where(random.random(codes.shape) < density, codes, 0).sum(axis=0)
    count = planes.plane_count(largest)
    return planes.pack_integers(tf.constant(integers, tf.float32), count).numpy()


@pytest.mark.parametrize("rows", [0, 1, 2, 9, 203, 513])
@pytest.mark.parametrize("density", [0.0, 0.01, 0.3, 1.0])
@pytest.mark.parametrize("largest", [1, 2, 9, 31, 127, 2032])
def test_law_3_packed_codes_equal_the_references_and_come_back(kernels, rows, density, largest):
    words = sums_of_codes(rows, largest, density)
    packed = kernels.packing.pack(words.reshape(-1).data.cast("B"), largest)
    assert bytes(packed) == prefix_code.pack(words, largest).tobytes()
    back = np.full(words.nbytes, 0xCC, np.uint8)
    kernels.packing.unpack(packed, largest, back)
    assert back.tobytes() == words.tobytes()


@pytest.mark.parametrize("largest", [1, 4, 127])
@pytest.mark.parametrize("seed", range(20))
def test_law_3_changed_bytes_are_taken_and_refused_as_by_the_reference(native, largest, seed):
    words = sums_of_codes(60, largest, 0.1)
    packed = prefix_code.pack(words, largest).copy()
    random = np.random.default_rng(seed)
    packed[random.integers(0, packed.size, 2)] ^= 1 << random.integers(0, 8, 2, np.uint8)
    packed = packed[: packed.size - 8 * (seed % 4 == 0)]
    found = np.empty(words.nbytes, np.uint8)
    try:
        expected = prefix_code.unpack(packed, largest, *words.shape)
    except ValueError:
        with pytest.raises(ValueError, match="no code of 60 rows"):
            native.packing.unpack(packed.data, largest, found)
    else:
        native.packing.unpack(packed.data, largest, found)
        assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("size", [0, 7, 8, 15, 399, 401, 1000])
def test_law_10_payloads_of_an_impossible_size_are_refused(kernels, size):
    with pytest.raises(ValueError, match=r"packed|no code of 50 rows"):
        kernels.packing.unpack(memoryview(bytes(size)), 1, np.empty(400, np.uint8))


def test_law_10_streams_within_streams_are_refused_before_they_fill_the_stack(kernels):
    rows = 1 << 15
    packed = np.full(100_000, 8, np.uint8)  # each stream begins with another
    packed[:9] = [2, *[0] * 7, 0x80]  # blocks; zeros are left out
    with pytest.raises(ValueError, match=r"only 32 bits|no code of 32768 rows"):
        kernels.packing.unpack(packed.data, 1, np.empty(8 * rows, np.uint8))


def codes_of(groups, seed):
    """Packed random codes: uint32 [groups, 2]."""
    nonzero, negative = np.random.default_rng(seed).integers(0, 2**32, (2, groups), np.uint32)
    return np.stack([nonzero, nonzero & negative], axis=1)


def test_law_10_buffers_in_memory_that_do_not_fit_are_named(native):
    with pytest.raises(ValueError, match=r"have \[16, 24\] bytes"):
        native.packing.sum_buffers([memoryview(bytes(16)), memoryview(bytes(24))], 2, 3)
    with pytest.raises(ValueError, match="19 planes in, 3 out; allowed are 1 to 18"):
        native.packing.sum_buffers([memoryview(bytes(76))], 19, 3)
    with pytest.raises(ValueError, match="largest is 65537; allowed are 1 to 65536"):
        native.packing.pack(memoryview(bytes(72)), 65537)
