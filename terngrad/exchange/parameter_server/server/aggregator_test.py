"""Results equal those of other exchanges, pushes are idempotent, and memory is bounded."""

import contextlib
import threading

import numpy as np
import pytest

from terngrad import prefix_code
from terngrad.coordination import groups
from terngrad.exchange.parameter_server import operations
from terngrad.exchange.parameter_server.operations import Kind, Operation
from terngrad.exchange.parameter_server.server.aggregator import Aggregator
from terngrad.exchange.parameter_server.server.catalogue import PushError
from terngrad.exchange.parameter_server.server.reduction import Reduction
from terngrad.ops.packing import ReferencePacking
from terngrad.planes import plane_count
from terngrad.service.messages import Header, split_frame
from terngrad.testing.limits import HANG_SECS


class Served:
    """An aggregator whose workers are all in view 1, and its results by worker."""

    def __init__(self, workers=2, kind=Kind.FLOATS, items=4, reduce=None, kept_steps=1, **limits):
        self.delivered = {i: [] for i in range(workers)}
        reduction = Reduction(ReferencePacking())
        reduction.reduce = reduce or reduction.reduce
        self.entered = {i: [] for i in range(workers)}  # what each was told about its views
        self.aggregator = Aggregator(workers, reduction, self._deliver, kept_steps, **limits)
        self.operation = Operation("sum", kind, items, 1, workers)
        for worker in range(workers):
            self.aggregator.declare(worker, self.operation.message(0))
        self.enter(1, *range(workers))

    def _deliver(self, worker, frame):
        header, _ = split_frame(frame)
        if header.enters:
            self.entered[worker].append((header.view, groups.unpack(header.contributors)))
        else:
            self.delivered[worker].append(frame)

    def enter(self, view, *workers, members=()):
        header = Header(enters=True, view=view, contributors=groups.pack(members or self.entered))
        for worker in workers:
            self.aggregator.enter(worker, header)

    def push(self, worker, step, values=(), piece=0, operation=0, view=1, by=()):
        header = Header(step=step, operation=operation, piece=piece, view=view)
        header.contributors = groups.pack(by or self.delivered)
        self.aggregator.push(worker, header, memoryview(np.asarray(values).tobytes()))

    def headers(self, worker):
        return [split_frame(frame)[0] for frame in self.delivered[worker]]

    def results(self, worker, dtype="<f4"):
        found = [split_frame(frame) for frame in self.delivered[worker]]
        return [(header.step, np.frombuffer(payload, dtype)) for header, payload in found]


def floats(*values):
    return np.asarray(values, "<f4")


def test_law_5_sums_of_codes_are_exact(kernels):
    workers, count = 5, 7
    reduction = Reduction(kernels.packing)
    operation = Operation("codes", Kind.CODES, count, 1, workers)
    rng = np.random.default_rng(0)
    codes = rng.integers(-1, 2, (workers, count * 32))
    payloads = [prefix_code.pack(packed(each, 2), 1).data for each in codes]
    parts = [reduction.open(operation, 0, each) for each in payloads]
    total = reduction.reduce(operation, parts)
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
    held = codes.served.aggregator.held_bytes
    with pytest.raises(PushError, match=f"^sum: piece 0.*{text}"):
        codes.served.push(0, 7, change(codes.payloads[0]), by=by)
    assert codes.served.aggregator.held_bytes == held == codes.operation.push_size(0)
    for worker in {*by} - {1}:
        codes.push(worker, by)
    own = codes.integers[0] if codes.operation.leaves_out_own else 0
    np.testing.assert_array_equal(codes.answers(0)[0] + own, codes.integers.sum(axis=0))


@pytest.mark.parametrize("workers", [3, 4, 5, 8])
def test_three_and_more_workers_get_one_result(workers):
    codes = Codes(workers)
    by = tuple(range(workers))
    for worker in by:
        codes.push(worker, by)
    np.testing.assert_array_equal(codes.answers(0)[0], codes.integers.sum(axis=0))
    frames = codes.served.delivered
    assert all(frames[worker] == frames[0] for worker in by)


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


def test_law_5_a_slow_worker_gets_a_kept_sum_of_all_contributors():
    codes = Codes(4)
    by = (0, 1, 3)
    for worker in by:
        codes.push(worker, by)
    codes.push(2, by)
    (answer,) = codes.answers(2)
    np.testing.assert_array_equal(answer, codes.integers[list(by)].sum(axis=0))


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


def test_the_contributors_alone_make_a_step_and_all_workers_get_it():
    served = Served(workers=3, kept_steps=2)
    by = (0, 2)
    served.push(1, 4, by=by)  # only asks for the result
    served.push(2, 4, floats(1, 2, 3, 4), by=by)
    assert not any(served.delivered.values())
    served.push(0, 4, floats(1, 1, 1, 1), by=by)
    for worker in range(3):
        ((step, result),) = served.results(worker)
        assert step == 4
        np.testing.assert_array_equal(result, [2, 3, 4, 5])
        (header,) = served.headers(worker)
        assert groups.unpack(header.contributors) == by


def test_halves_are_divided_by_the_number_of_contributors():
    served = Served(workers=3, kind=Kind.HALVES, items=1)
    served.push(0, 0, np.float16([1]), by=(0, 1))
    served.push(1, 0, np.float16([2]), by=(0, 1))
    np.testing.assert_array_equal(served.results(0, "<f2")[0][1], np.float16([1.5]))


def test_a_slow_worker_gets_kept_results_and_learns_which_ones_are_gone():
    served = Served(workers=2, kept_steps=2)
    for step in range(4):
        served.push(0, step, floats(step, 0, 0, 0), by=(0,))
    served.push(1, 3, by=(0,))
    served.push(1, 2, by=(0,))
    served.push(1, 1, by=(0,))
    assert [header.gone for header in served.headers(1)] == [False, False, True]
    assert [result[0] for _, result in served.results(1)[:2]] == [3, 2]


def test_results_stay_for_a_worker_that_pushes_first_when_the_others_are_done():
    served = Served(workers=2, kept_steps=2)
    for step in range(2):
        served.push(0, step, floats(step, 0, 0, 0), by=(0,))
    served.aggregator.leave(0)
    for step in range(2):
        served.push(1, step, by=(0,))
    assert [result[0] for _, result in served.results(1)] == [0, 1]


def test_no_step_has_pushes_of_two_views():
    served = Served()
    served.enter(3, 0, 1)
    served.push(0, 7, floats(1, 1, 1, 1), view=3)
    served.enter(4, 1)
    served.push(0, 7, floats(9, 9, 9, 9), view=3)  # does not know the new view yet
    assert served.aggregator.held_bytes == 16
    served.enter(4, 0)
    assert served.aggregator.held_bytes == 0
    assert served.entered[0][-2:] == [(3, (0, 1)), (4, (0, 1))]
    for worker in (0, 1):
        served.push(worker, 7, floats(2, 2, 2, 2), view=4)
    for worker in (0, 1):
        assert [list(result) for _, result in served.results(worker)] == [[4, 4, 4, 4]]
    assert served.aggregator.held_bytes == 16


def test_nothing_is_kept_of_a_view_that_nobody_else_is_in():
    """Neither of one with other members, of one with the same number, nor of one's own."""
    served = Served(workers=3, kept_steps=16, needed=2)
    served.enter(4, 0, 1, members=(0, 1))
    own = {"members": (2,)}, {"members": (0, 2)}, {"members": (0, 1, 2)}
    for entered in own:
        for by in ((0, 2), (0, 1, 2), (2,)):
            served.aggregator.leave(2)
            served.aggregator.declare(2, served.operation.message(0))
            served.push(2, 7, floats(9, 9, 9, 9), view=4, by=by)  # not entered yet
            served.enter(4, 2, **entered)
            with contextlib.suppress(PushError):
                served.push(2, 7, floats(9, 9, 9, 9), view=4, by=by)
            assert served.aggregator.held_bytes == 0
    text = r"contributors \[0, 1\] are not in view 4"
    with pytest.raises(PushError, match=text):
        served.push(2, 7, floats(9, 9, 9, 9), view=4, by=(0, 1, 2))
    with pytest.raises(PushError, match=r"contributors are \[2\]; a step needs at least 2"):
        served.push(2, 7, floats(9, 9, 9, 9), view=4, by=(2,))
    assert served.entered[0][-1] == (4, (0, 1))
    for worker in (0, 1):
        served.push(worker, 7, floats(1, 1, 1, 1), view=4, by=(0, 1))
    assert [list(result) for _, result in served.results(0)] == [[2, 2, 2, 2]]
    served.aggregator.leave(2)
    served.aggregator.declare(2, served.operation.message(0))
    served.enter(5, 0, 1, 2)
    for worker in range(3):
        served.push(worker, 9, floats(1, 1, 1, 1), view=5)
    np.testing.assert_array_equal(served.results(2)[-1][1], [3, 3, 3, 3])


def test_law_10_a_view_that_a_worker_cannot_enter_is_named():
    served = Served(workers=3)
    for view in (0, 1):
        with pytest.raises(PushError, match=f"view is {view}; allowed is from 2 on"):
            served.enter(view, 0)
    with pytest.raises(PushError, match=r"members of view 2 are \[1, 2\], without it"):
        served.enter(2, 0, members=(1, 2))


def test_nothing_is_kept_of_a_view_that_all_have_left():
    served = Served(kept_steps=16)
    for step in range(3):
        for worker in (0, 1):
            served.push(worker, step, floats(1, 1, 1, 1))
    served.push(0, 3, floats(1, 1, 1, 1))
    assert served.aggregator.held_bytes == 4 * 16
    served.enter(2, 0)
    assert served.aggregator.held_bytes == 3 * 16
    served.enter(2, 1)
    assert served.aggregator.held_bytes == 0


@pytest.mark.parametrize("has_entered", [True, False])
def test_results_stay_for_a_member_that_declares_when_the_others_are_done(has_entered):
    served = Served(kept_steps=2)
    served.aggregator.come(1)
    served.enter(2, *range(1 + has_entered))
    for step in range(2):
        served.push(0, step, floats(step, 0, 0, 0), view=2, by=(0,))
    served.aggregator.leave(0)
    assert served.aggregator.held_bytes == 2 * 16
    if not has_entered:
        served.enter(2, 1)
    served.aggregator.declare(1, served.operation.message(0))
    for step in range(2):
        served.push(1, step, view=2, by=(0,))
    assert [result[0] for _, result in served.results(1)] == [0, 1]
    served.aggregator.leave(1)
    assert served.aggregator.held_bytes == 0


def test_a_view_may_make_a_step_again():
    served = Served()
    for view in (2, 3):
        served.enter(view, 0, 1)
        for worker in (0, 1):
            served.push(worker, 7, floats(view, 0, 0, 0), view=view)
    assert [result[0] for _, result in served.results(0)] == [4, 6]


def test_law_10_contributors_that_do_not_fit_are_named():
    served = Served()
    with pytest.raises(
        PushError, match="contributors: a set has members that do not exist; allowed are 0 to 1"
    ):
        served.push(0, 1, by=(5,))
    with pytest.raises(PushError, match="contributors: the set is empty"):
        served.aggregator.push(0, Header(step=1, view=1, contributors=b"\0"), memoryview(b""))
    with pytest.raises(PushError, match="a push without a view"):
        served.push(0, 1, floats(1, 2, 3, 4), view=0)
    served.push(0, 1, floats(1, 2, 3, 4), by=(0, 1))
    with pytest.raises(PushError, match=r"contributors of step 1 are \[1\]; other workers have"):
        served.push(1, 1, floats(1, 2, 3, 4), by=(1,))
    with pytest.raises(PushError, match="piece 0 has 16 bytes; allowed is 0"):
        served.push(1, 2, floats(1, 2, 3, 4), by=(0,))
    assert served.aggregator.held_bytes == 16


def test_a_repeated_push_counts_once_and_is_answered_again():
    served = Served()
    served.push(0, 7, floats(1, 2, 3, 4))
    served.push(0, 7, floats(9, 9, 9, 9))
    served.push(1, 7, floats(1, 1, 1, 1))
    served.push(1, 7, floats(5, 5, 5, 5))
    for worker, times in ((0, 1), (1, 2)):
        assert [step for step, _ in served.results(worker)] == [7] * times
        for _, result in served.results(worker):
            np.testing.assert_array_equal(result, [2, 3, 4, 5])


def test_a_push_repeated_while_its_result_is_computed_changes_nothing():
    entered, go_on = threading.Event(), threading.Event()

    def slow(operation, parts):
        del operation
        entered.set()
        assert go_on.wait(HANG_SECS)
        return parts[1]

    served = Served(reduce=slow)
    served.push(0, 3, floats(0, 0, 0, 0))
    last = threading.Thread(target=served.push, args=(1, 3, floats(1, 2, 3, 4)))
    last.start()
    assert entered.wait(HANG_SECS)
    served.push(0, 3, floats(0, 0, 0, 0))
    go_on.set()
    last.join(HANG_SECS)
    assert [len(served.delivered[worker]) for worker in (0, 1)] == [1, 1]


def test_workers_are_at_most_one_step_ahead_of_a_slow_one():
    served = Served()
    served.push(0, 5, floats(1, 2, 3, 4))
    served.push(0, 6, floats(1, 2, 3, 4))
    with pytest.raises(PushError, match="sum: step is 7; steps 5 and 6 are under way"):
        served.push(0, 7, floats(1, 2, 3, 4))
    held = served.aggregator.held_bytes
    for _ in range(100):
        with pytest.raises(PushError):
            served.push(0, 8, floats(1, 2, 3, 4))
    assert served.aggregator.held_bytes == held == 2 * 16


def test_only_one_result_is_held_while_all_workers_keep_up():
    served = Served()
    held = set()
    for step in range(50):
        for worker in (0, 1):
            served.push(worker, step, floats(1, 2, 3, 4))
        held.add(served.aggregator.held_bytes)
        assert [s for s, _ in served.results(0)] == list(range(step + 1))
    assert held == {16}


def test_pieces_are_joined_on_their_own(monkeypatch):
    monkeypatch.setattr(operations, "PIECE_BYTES", 8)
    served = Served(items=5)
    assert served.aggregator.piece_count == 3
    served.push(0, 0, floats(1), piece=2)
    served.push(1, 0, floats(2), piece=2)
    assert served.results(0)[0][1] == [3]


@pytest.mark.parametrize(
    ("push", "text"),
    [
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
    held = served.aggregator.held_bytes
    with pytest.raises(PushError, match=text):
        served.push(0, **{"step": 6, "values": floats(1, 2, 3, 4)} | push)
    assert served.aggregator.held_bytes == held
    for worker in (0, 1):
        served.push(worker, 6, floats(1, 1, 1, 1))
    np.testing.assert_array_equal(served.results(0)[-1][1], [2, 2, 2, 2])


def test_operations_meet_by_their_names_in_whatever_order_they_are_declared():
    served = Served(items=1)
    other = Operation("other", Kind.FLOATS, 1, 1, 2)
    served.aggregator.leave(1)
    for index, operation in enumerate([other, served.operation]):
        served.aggregator.declare(1, operation.message(index))
    served.enter(1, 1)
    served.push(0, 0, floats(1), operation=0)
    served.push(1, 0, floats(2), operation=1)
    for worker, index in ((0, 0), (1, 1)):
        assert served.results(worker)[0][1] == [3]
        assert served.headers(worker)[0].operation == index


def test_a_restarted_worker_gets_no_result_that_its_earlier_process_asked_for():
    served = Served()
    served.push(1, 4, by=(0,))
    served.aggregator.leave(1)
    served.push(0, 4, floats(1, 2, 3, 4), by=(0,))
    assert len(served.delivered[0]) == 1
    assert not served.delivered[1]


def test_law_10_a_worker_that_pushes_more_than_its_share_is_refused_and_no_other():
    served = Served(most_bytes=40)
    served.push(0, 5, floats(1, 2, 3, 4), view=1)
    text = "the ps holds 0 MB of this worker's pushes; allowed are 0: start more ps"
    with pytest.raises(PushError, match=text):
        served.push(0, 6, floats(1, 2, 3, 4), view=1)
    assert served.aggregator.held_bytes == 16
    served.push(1, 5, floats(1, 1, 1, 1), view=1)
    np.testing.assert_array_equal(served.results(1)[0][1], [2, 3, 4, 5])
    served.push(0, 6, floats(1, 2, 3, 4), view=1)  # pushes of a finished step do not count


def test_pushes_in_a_view_that_the_worker_left_do_not_count():
    served = Served(workers=3, kept_steps=0, most_bytes=3 * 24)
    for step in range(6):  # each step begins in one view and ends in the next
        served.push(0, step, floats(1, 2, 3, 4), view=step + 1)
        assert served.aggregator.held_bytes == 16
        served.enter(step + 2, 0, 1, 2)
        for worker in range(3):  # worker 2 pushes last
            served.push(worker, step, floats(1, 2, 3, 4), view=step + 2)
    assert [step for step, _ in served.results(0)] == list(range(6))


def test_a_push_counts_with_its_whole_message():
    served = Served(items=0, most_bytes=2 * 100)
    content = bytearray(60)
    header = Header(step=0, contributors=groups.pack([0, 1]), view=1)
    served.aggregator.push(0, header, memoryview(content)[60:])
    assert served.aggregator.held_bytes == 60
    header.step = 1
    with pytest.raises(PushError, match="allowed are 0: start more ps"):
        served.aggregator.push(0, header, memoryview(content)[60:])


def test_no_result_is_kept_if_no_worker_can_be_behind():
    served = Served(kept_steps=0)
    for worker in (0, 1):
        served.push(worker, 0, floats(1, 2, 3, 4), view=1)
    assert served.aggregator.held_bytes == 0
    assert len(served.results(1)) == 1


def test_results_for_slow_workers_are_dropped_if_memory_is_short():
    served = Served(kept_steps=16, most_bytes=4 * 16)
    for step in range(5):
        for worker in (0, 1):
            served.push(worker, step, floats(1, 2, 3, 4))
        assert served.aggregator.held_bytes <= 4 * 16
    for step, is_gone in ((3, True), (4, False)):
        served.push(0, step, floats(1, 2, 3, 4))
        assert served.headers(0)[-1].gone == is_gone


def test_nothing_is_kept_of_operations_that_no_worker_declares_any_more():
    served = Served()
    for i in range(3):  # the view stays, so only a new stream ends the operation
        served.aggregator.leave(1)
        served.aggregator.declare(1, Operation(f"other {i}", Kind.FLOATS, 4, 1, 2).message(0))
        served.enter(1, 1)
        served.push(1, 0, floats(1, 2, 3, 4))
        assert served.aggregator.held_bytes == 16
    served.push(0, 0, floats(1, 2, 3, 4))
    served.aggregator.leave(1)
    assert served.aggregator.held_bytes == 16  # of worker 0's operation
    served.aggregator.declare(1, served.operation.message(0))
    served.enter(1, 1)
    served.push(1, 0, floats(1, 1, 1, 1))
    np.testing.assert_array_equal(served.results(0)[0][1], [2, 3, 4, 5])


def test_a_view_forgotten_while_a_result_is_computed_leaves_nothing_behind():
    reducing, go_on = threading.Event(), threading.Event()

    def reduce(operation, parts):
        reducing.set()
        assert go_on.wait(HANG_SECS)
        return Reduction(ReferencePacking()).reduce(operation, parts)

    served = Served(reduce=reduce)
    served.push(0, 0, floats(1, 2, 3, 4), view=1)
    pushing = threading.Thread(
        target=served.push, args=(1, 0, floats(1, 2, 3, 4)), kwargs={"view": 1}
    )
    pushing.start()
    assert reducing.wait(HANG_SECS)
    served.aggregator.leave(1)
    served.enter(2, 0, members=(0,))
    assert served.aggregator.held_bytes == 0
    go_on.set()
    pushing.join(HANG_SECS)
    assert served.aggregator.held_bytes == 0
