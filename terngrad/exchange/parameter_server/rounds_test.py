"""Rounds: results equal what other exchanges compute, pushes are idempotent, memory is bounded."""

import threading

import numpy as np
import pytest

from terngrad.codecs.planes import plane_count
from terngrad.exchange.parameter_server import operations
from terngrad.exchange.parameter_server.messages import Header, OperationMessage, split_frame
from terngrad.exchange.parameter_server.operations import Kind, Operation
from terngrad.exchange.parameter_server.reduction import Reduction
from terngrad.exchange.parameter_server.rounds import PushError, Rounds
from terngrad.ops.reference import ReferenceKernels


class Served:
    """Rounds and what they delivered, by worker."""

    def __init__(self, workers=2, kind=Kind.FLOATS, items=4, reduce=None):
        self.delivered = {i: [] for i in range(workers)}
        reduce = reduce or Reduction(ReferenceKernels(), workers).reduce
        self.rounds = Rounds(workers, reduce, lambda worker, f: self.delivered[worker].append(f))
        self.operation = Operation(0, "sum", kind, items, 1, workers)
        for worker in range(workers):
            self.rounds.declare(worker, self.operation.message())

    def push(self, worker, step, values, piece=0, operation=0):
        header = Header(step=step, operation=operation, piece=piece)
        self.rounds.push(worker, header, memoryview(np.asarray(values).tobytes()))

    def results(self, worker, dtype="<f4"):
        found = [split_frame(frame) for frame in self.delivered[worker]]
        return [(header.step, np.frombuffer(payload, dtype)) for header, payload in found]


def floats(*values):
    return np.asarray(values, "<f4")


def test_law_5_sums_of_codes_are_exact(kernels):
    workers, groups = 5, 7
    reduction = Reduction(kernels, workers)
    operation = Operation(0, "codes", Kind.CODES, groups, 1, workers)
    rng = np.random.default_rng(0)
    codes = rng.integers(-1, 2, (workers, groups * 32))
    planes = np.stack([codes != 0, codes < 0], axis=2).reshape(workers, groups, 32, 2)
    words = np.sum(planes * (1 << np.arange(32))[:, None], axis=2).astype("<u4")
    total = reduction.reduce(operation, [memoryview(w.tobytes()) for w in words])
    assert total.nbytes == groups * operation.result_bytes
    k = plane_count(workers)
    found = np.frombuffer(total, "<u4").reshape(groups, k)
    bits = (found[:, None, :] >> np.arange(32)[None, :, None]) & 1
    weights = np.array([1 << j for j in range(k - 1)] + [-(1 << k - 1)])
    np.testing.assert_array_equal((bits @ weights).reshape(-1), codes.sum(0))


def test_law_4_floats_are_added_in_a_tree_over_the_workers():
    values = np.float32([1.0, 2.0**-24, 2.0**-24, 2.0**-24, 1.0])
    served = Served(workers=5, items=1)
    for worker in (3, 0, 4, 1, 2):  # whoever comes first
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


def test_bytes_are_broadcast_and_gathered():
    served = Served(kind=Kind.BROADCAST, items=3)
    served.push(0, 0, np.frombuffer(b"abc", "u1"))
    served.push(1, 0, [])
    assert [r.tobytes() for _, r in served.results(1, "u1")] == [b"abc"]
    served = Served(kind=Kind.GATHER, items=2)
    served.push(1, 0, np.frombuffer(b"cd", "u1"))
    served.push(0, 0, np.frombuffer(b"ab", "u1"))
    assert [r.tobytes() for _, r in served.results(0, "u1")] == [b"abcd"]


def test_what_is_pushed_twice_counts_once_and_is_answered_again():
    served = Served()
    served.push(0, 7, floats(1, 2, 3, 4))
    served.push(0, 7, floats(9, 9, 9, 9))
    served.push(1, 7, floats(1, 1, 1, 1))
    served.push(1, 7, floats(5, 5, 5, 5))
    for worker, times in ((0, 1), (1, 2)):
        assert [step for step, _ in served.results(worker)] == [7] * times
        for _, result in served.results(worker):
            np.testing.assert_array_equal(result, [2, 3, 4, 5])


def test_a_result_that_is_being_computed_is_asked_for_again_without_harm():
    entered, go_on = threading.Event(), threading.Event()

    def slow(operation, parts):
        entered.set()
        assert go_on.wait(60)
        return parts[1]

    served = Served(reduce=slow)
    served.push(0, 3, floats(0, 0, 0, 0))
    last = threading.Thread(target=served.push, args=(1, 3, floats(1, 2, 3, 4)))
    last.start()
    assert entered.wait(60)
    served.push(0, 3, floats(0, 0, 0, 0))
    go_on.set()
    last.join(60)
    assert [len(served.delivered[worker]) for worker in (0, 1)] == [1, 1]


def test_a_slow_worker_lets_the_others_be_one_step_ahead_and_no_more():
    served = Served()
    served.push(0, 5, floats(1, 2, 3, 4))
    served.push(0, 6, floats(1, 2, 3, 4))
    with pytest.raises(PushError, match="sum: step is 7; steps 5 and 6 are under way"):
        served.push(0, 7, floats(1, 2, 3, 4))
    held = served.rounds.held_bytes()
    for _ in range(100):
        with pytest.raises(PushError):
            served.push(0, 8, floats(1, 2, 3, 4))
    assert served.rounds.held_bytes() == held == 2 * 16


def test_memory_is_that_of_one_result_when_all_go_on():
    served = Served()
    held = set()
    for step in range(50):
        for worker in (0, 1):
            served.push(worker, step, floats(1, 2, 3, 4))
        held.add(served.rounds.held_bytes())
        assert [s for s, _ in served.results(0)] == list(range(step + 1))
    assert max(held) - min(held) <= 2  # the header's varint grows
    assert max(held) < 40


def test_pieces_are_rounds_of_their_own(monkeypatch):
    monkeypatch.setattr(operations, "PIECE_BYTES", 8)
    served = Served(items=5)
    assert served.rounds.piece_count == 3
    served.push(0, 0, floats(1), piece=2)
    served.push(1, 0, floats(2), piece=2)
    assert served.results(0)[0][1] == [3]


@pytest.mark.parametrize(
    ("push", "text"),
    [
        ({"step": 4}, "sum: step is 4; that is over, the last is 5"),
        ({"operation": 1}, "operation 1 was not declared"),
        ({"piece": 1}, "sum: piece is 1; allowed is 0 to 0"),
        ({"values": floats(1)}, "sum: piece 0 has 4 bytes; allowed is 16"),
        ({"values": floats(*range(1000))}, "sum: piece 0 has 4000 bytes; allowed is 16"),
    ],
)
def test_law_10_pushes_that_do_not_fit_are_named_and_nothing_is_kept(push, text):
    served = Served()
    for worker in (0, 1):
        served.push(worker, 5, floats(1, 2, 3, 4))
    held = served.rounds.held_bytes()
    with pytest.raises(PushError, match=text):
        served.push(0, **{"step": 6, "values": floats(1, 2, 3, 4)} | push)
    assert served.rounds.held_bytes() == held
    for worker in (0, 1):
        served.push(worker, 6, floats(1, 1, 1, 1))
    np.testing.assert_array_equal(served.results(0)[-1][1], [2, 2, 2, 2])


def test_law_10_operations_of_another_layout_are_named():
    served = Served()
    served.rounds.arrive(1)
    message = Operation(0, "another", Kind.FLOATS, 4, 1, 2).message()
    with pytest.raises(
        PushError, match="name of operation 0 is another, that of another worker sum"
    ):
        served.rounds.declare(1, message)


def test_law_10_declarations_out_of_order_or_impossible_are_named():
    served = Served()
    message = Operation(5, "later", Kind.FLOATS, 4, 1, 2).message()
    with pytest.raises(PushError, match="operation 5 is declared where 1 is next"):
        served.rounds.declare(0, message)
    with pytest.raises(PushError, match="kind is 0"):
        served.rounds.declare(0, OperationMessage(index=1, name="x"))
