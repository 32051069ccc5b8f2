"""What an aggregator sends: sums that equal those of other exchanges."""

import numpy as np
import pytest

from terngrad import prefix_code
from terngrad.exchange.parameter_server.operations import Kind, Operation
from terngrad.exchange.parameter_server.server.arithmetic import PackedArithmetic
from terngrad.exchange.parameter_server.server.catalogue import PushError
from terngrad.planes import plane_count
from terngrad.testing.aggregation import Served, floats


def test_law_5_sums_of_codes_are_exact(kernels):
    workers, count = 5, 7
    arithmetic = PackedArithmetic(kernels.packing)
    operation = Operation("codes", Kind.CODES, count, 1, workers)
    rng = np.random.default_rng(0)
    codes = rng.integers(-1, 2, (workers, count * 32))
    payloads = [prefix_code.pack(packed(each, 2), 1).data for each in codes]
    parts = [arithmetic.open(operation, 0, each) for each in payloads]
    total = arithmetic.reduce(operation, parts)
    assert total.nbytes == count * operation.result_bytes
    found = np.frombuffer(total, "<u4").reshape(count, plane_count(workers))
    np.testing.assert_array_equal(unpacked(found), codes.sum(0))


class Codes:
    """Aggregated sums of 40 groups of random codes, and how a worker completes an answer."""

    def __init__(self, workers, density=0.3, kept_steps=2, is_positive=False):
        self.served = Served(workers, Kind.CODES, items=40, kept_steps=kept_steps)
        self.operation = self.served.operation
        rng = np.random.default_rng(workers)
        signs = np.where(rng.random((workers, 40 * 32)) < 0.5, 1, 1 if is_positive else -1)
        self.integers = signs * (rng.random(signs.shape) < density)
        self.payloads = [prefix_code.pack(packed(each, 2), 1) for each in self.integers]

    def push(self, worker, by):
        self.served.push(worker, 7, self.payloads[worker] if worker in by else (), by=by)

    def answers(self, worker):
        """The integers that a worker was sent."""
        rows, planes = self.operation.items, self.operation.result_planes
        largest = self.operation.largest_result
        found = [payload for _, payload in self.served.results(worker, np.uint8)]
        return [unpacked(prefix_code.unpack(each, largest, rows, planes)) for each in found]


def packed(integers, planes):
    bits = (integers.reshape(-1, 32, 1) >> np.arange(planes)) & 1
    return np.sum(bits << np.arange(32)[:, None], axis=1).astype("<u4")


def unpacked(words):
    bits = (words[:, None, :] >> np.arange(32)[:, None]) & 1
    planes = words.shape[1]
    weights = np.array([1 << j for j in range(planes - 1)] + [-(1 << planes - 1)])
    return (bits @ weights).reshape(-1)


@pytest.mark.parametrize(
    ("workers", "by"),
    [
        (2, (0, 1)),
        (2, (1,)),
        (4, (0, 1, 2, 3)),
        (4, (0, 2, 3)),
        (4, (1, 2)),
        (4, (3,)),
        (8, tuple(range(8))),
        (8, (0, 2, 3, 4)),
    ],
)
def test_law_5_two_contributors_get_each_others_codes_and_all_others_the_sum_of_all(workers, by):
    codes = Codes(workers)
    late = 0 if 0 not in by else workers - 1
    for worker in {*range(workers)} - {late}:
        codes.push(worker, by)
    codes.push(late, by)
    total = codes.integers[list(by)].sum(axis=0)
    for worker in range(workers):
        leaves_out = codes.operation.leaves_out_own and worker in by
        own = codes.integers[worker] if leaves_out else 0
        (answer,) = codes.answers(worker)
        np.testing.assert_array_equal(answer + own, total)

        if not codes.operation.leaves_out_own:
            assert codes.served.delivered[worker] == codes.served.delivered[0]


@pytest.mark.parametrize("kept_steps", [0, 2])
@pytest.mark.parametrize("density", [0.0, 0.02, 0.3, 1.0])
@pytest.mark.parametrize("workers", range(1, 6))
def test_law_5_sums_are_exact_however_many_codes_differ_from_zero(workers, density, kept_steps):
    codes = Codes(workers, density, kept_steps, is_positive=True)
    raw = codes.operation.push_size(0)
    assert all(each.nbytes == raw for each in codes.payloads) == (density == 1)
    for worker in range(workers):
        codes.push(worker, range(workers))
    total = codes.integers.sum(axis=0)
    for worker in range(workers):
        own = codes.integers[worker] if codes.operation.leaves_out_own else 0
        (answer,) = codes.answers(worker)
        np.testing.assert_array_equal(answer + own, total)


@pytest.mark.parametrize("kept_steps", [0, 2])
def test_two_workers_get_each_others_pushes_as_they_are(kept_steps):
    codes = Codes(2, kept_steps=kept_steps)
    for worker in (0, 1):
        codes.push(worker, (0, 1))
    for worker in (0, 1):
        ((_, payload),) = codes.served.results(worker, np.uint8)
        np.testing.assert_array_equal(payload, codes.payloads[1 - worker])


@pytest.mark.parametrize("workers", [3, 4])
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda payload: payload[:-8], "cannot be read: .* bytes"),
        (lambda payload: payload[:0], "cannot be read: "),
        (lambda payload: np.pad(payload, (0, 8)), "cannot be read: .* 8 bytes too many"),
        (lambda payload: np.full_like(payload, 0x7F), "cannot be read: packed begins with 9187"),
        (lambda payload: np.zeros(321, np.uint8), "321 bytes; allowed are 0 to 320"),
    ],
    ids=["truncated", "empty", "longer", "noise", "too long"],
)
def test_law_10_a_push_that_is_no_code_is_refused_on_arrival_and_counts_nothing(
    workers, change, text
):
    codes, by = Codes(workers), tuple(range(workers))
    codes.push(1, by)
    held = codes.served.aggregator.memory_bytes
    with pytest.raises(PushError, match=f"^sum: piece 0.*{text}"):
        codes.served.push(0, 7, change(codes.payloads[0]), by=by)
    assert codes.served.aggregator.memory_bytes == held == codes.operation.push_size(0)
    for worker in {*by} - {1}:
        codes.push(worker, by)
    own = codes.integers[0] if codes.operation.leaves_out_own else 0
    np.testing.assert_array_equal(codes.answers(0)[0] + own, codes.integers.sum(axis=0))


@pytest.mark.parametrize(("workers", "by"), [(2, (0, 1)), (4, (0, 1, 2, 3)), (4, (0, 1, 3))])
def test_law_5_a_repeated_push_of_codes_gets_the_same_answer(workers, by):
    codes = Codes(workers)
    for worker in (0, 0, *range(1, workers), 0):
        codes.push(worker, by)
    total = codes.integers[list(by)].sum(axis=0)
    first, again = codes.answers(0)
    own = codes.integers[0] if workers == 2 else 0
    np.testing.assert_array_equal(first + own, total)
    np.testing.assert_array_equal(again, first)


def test_law_4_floats_are_added_in_a_tree_over_the_workers():
    values = np.float32([1.0, 2.0**-24, 2.0**-24, 2.0**-24, 1.0])
    served = Served(workers=5, items=1)
    for worker in (3, 0, 4, 1, 2):  # in any order
        served.push(worker, 0, floats(values[worker]))
    a, b, c, d, e = values
    assert served.results(2)[0][1] == (((a + b) + (c + d)) + e)


def test_halves_are_rounded_once():
    served = Served(workers=3, kind=Kind.HALVES, items=2)
    each = np.float16([[1.0, 5.0], [2.0**-10, 3.0], [1.0, 3.0]])
    for worker in range(3):
        served.push(worker, 0, each[worker])
    expected = (each[0] + each[1].astype("<f4") + each[2]) / np.float32(3)
    np.testing.assert_array_equal(served.results(0, "<f2")[0][1], expected.astype("<f2"))


def test_the_largest_scale_is_infinite_where_one_is():
    served = Served(kind=Kind.MAX, items=3)
    served.push(0, 0, floats(1, np.inf, 0))
    served.push(1, 0, floats(2, 1, 0))
    np.testing.assert_array_equal(served.results(1)[0][1], floats(2, np.inf, 0))


def test_halves_are_divided_by_the_number_of_contributors():
    served = Served(workers=3, kind=Kind.HALVES, items=1)
    served.push(0, 0, np.float16([1]), by=(0, 1))
    served.push(1, 0, np.float16([2]), by=(0, 1))
    np.testing.assert_array_equal(served.results(0, "<f2")[0][1], np.float16([1.5]))
