"""Steps and views: pushes are idempotent, and memory is bounded."""

import contextlib
import threading

import numpy as np
import pytest

from terngrad.coordination import groups
from terngrad.exchange.parameter_server import operations
from terngrad.exchange.parameter_server.operations import Kind, Operation
from terngrad.exchange.parameter_server.server.arithmetic import PackedArithmetic
from terngrad.exchange.parameter_server.server.catalogue import PushError
from terngrad.ops.packing import ReferencePacking
from terngrad.planes import plane_count
from terngrad.service.messages import Header
from terngrad.testing.aggregation import Served, floats
from terngrad.testing.limits import HANG_SECS


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


def _codes(rows, value, planes=2):
    """Returns rows of 32 codes, all of which are 0 or 1."""
    words = np.zeros((rows, planes), "<u4")
    words[:, 0] = value * 0xFFFFFFFF
    return words


def _packed(words, largest=1):
    return ReferencePacking().pack(memoryview(words.tobytes()), largest)


def _opened(payload, rows, largest):
    words = np.empty(rows * 4 * plane_count(largest), np.uint8)
    ReferencePacking().unpack(memoryview(payload.tobytes()), largest, words)
    return words.view("<u4").reshape(rows, -1)


def test_the_exact_sum_of_a_share_goes_to_its_owner_only():
    served = Served(workers=3, kind=Kind.SCATTER_CODES, items=70)  # shares of 32, 32 and 6 groups
    for worker in range(3):
        for piece, rows in enumerate((32, 32, 6)):
            served.push(worker, 1, _packed(_codes(rows, int(worker != piece))), piece)
    for owner, rows in enumerate((32, 32, 6)):
        ((step, payload),) = served.results(owner, np.uint8)
        assert step == 1 and served.headers(owner)[0].piece == owner
        sums = _opened(payload, rows, 3)
        np.testing.assert_array_equal(sums[:, 1], _codes(rows, 1)[:, 0])  # all others have a 1
        assert not sums[:, [0, 2]].any()
    served.push(0, 1, _packed(_codes(32, 1)), 1)  # again: it does not own that piece
    served.push(1, 1, _packed(_codes(32, 0)), 1)
    assert [len(served.headers(worker)) for worker in range(3)] == [1, 2, 1]


def test_the_members_of_a_view_own_the_shares_of_those_that_are_not_in_it():
    up = Served(workers=3, kind=Kind.SCATTER_CODES, items=70)
    down = Served(workers=3, kind=Kind.GATHER_CODES, items=70)
    members, shares = (0, 2), enumerate(zip((32, 32, 6), (0, 2, 0), strict=True))
    up.enter(2, *members, members=members)
    down.enter(2, *members, members=members)
    for piece, (rows, owner) in shares:
        for worker in members:
            up.push(worker, 1, _packed(_codes(rows, 1)), piece, view=2, by=members)
            own = _packed(_codes(rows, 1)) if worker == owner else b""
            down.push(worker, 1, np.frombuffer(own, np.uint8), piece, view=2, by=members)
    assert [[h.piece for h in up.headers(worker)] for worker in range(3)] == [[0, 2], [], [1]]
    assert [[h.piece for h in down.headers(w)] for w in range(3)] == [[0, 1, 2], [], [0, 1, 2]]
    with pytest.raises(PushError, match=r"piece 1 has \d+ bytes; allowed is 0"):
        down.push(0, 2, np.frombuffer(_packed(_codes(32, 1)), np.uint8), 1, view=2, by=members)


def test_the_codes_of_an_owner_go_to_all_and_others_have_none():
    served = Served(workers=3, kind=Kind.GATHER_CODES, items=40)  # shares of 32, 8 and no groups
    for worker in (2, 0, 1):
        for piece, rows in enumerate((32, 8)):
            payload = _packed(_codes(rows, 1)) if worker == piece else b""
            served.push(worker, 1, np.frombuffer(payload, np.uint8), piece)
    for worker in range(3):
        found = dict(
            zip(
                [h.piece for h in served.headers(worker)],
                served.results(worker, np.uint8),
                strict=True,
            )
        )
        for piece, rows in enumerate((32, 8)):
            _, payload = found[piece]
            np.testing.assert_array_equal(_opened(payload, rows, 1), _codes(rows, 1))
    with pytest.raises(PushError, match=r"piece 0 has \d+ bytes; allowed is 0"):
        served.push(1, 2, _packed(_codes(32, 1)), 0)


def test_a_slow_worker_gets_kept_results_and_learns_which_ones_are_gone():
    served = Served(workers=2, kept_steps=2)
    for step in range(4):
        served.push(0, step, floats(step, 0, 0, 0), by=(0,))
    served.push(1, 3, by=(0,))
    served.push(1, 2, by=(0,))
    served.push(1, 1, by=(0,))
    assert [header.gone for header in served.headers(1)] == [False, False, True]
    assert [result[0] for _, result in served.results(1)[:2]] == [3, 2]


def test_no_step_has_pushes_of_two_views():
    served = Served()
    served.enter(3, 0, 1)
    served.push(0, 7, floats(1, 1, 1, 1), view=3)
    served.enter(4, 1)
    served.push(0, 7, floats(9, 9, 9, 9), view=3)  # does not know the new view yet
    assert served.aggregator.memory_bytes == 16
    served.enter(4, 0)
    assert served.aggregator.memory_bytes == 0
    assert served.entered[0][-2:] == [(3, (0, 1)), (4, (0, 1))]
    for worker in (0, 1):
        served.push(worker, 7, floats(2, 2, 2, 2), view=4)
    for worker in (0, 1):
        assert [list(result) for _, result in served.results(worker)] == [[4, 4, 4, 4]]
    assert served.aggregator.memory_bytes == 16


def test_nothing_is_kept_of_a_view_that_nobody_else_is_in():
    """Not of a view with other members, with the same number, or of the worker's own."""
    served = Served(workers=3, kept_steps=16, needed=2)
    served.enter(4, 0, 1, members=(0, 1))
    own = {"members": (2,)}, {"members": (0, 2)}, {"members": (0, 1, 2)}
    for entered in own:
        for by in ((0, 2), (0, 1, 2), (2,)):
            served.aggregator.disconnect(2)
            served.aggregator.declare(2, served.operation.message(0))
            served.push(2, 7, floats(9, 9, 9, 9), view=4, by=by)  # not entered yet
            served.enter(4, 2, **entered)
            with contextlib.suppress(PushError):
                served.push(2, 7, floats(9, 9, 9, 9), view=4, by=by)
            assert served.aggregator.memory_bytes == 0
    text = r"contributors \[0, 1\] are not in view 4"
    with pytest.raises(PushError, match=text):
        served.push(2, 7, floats(9, 9, 9, 9), view=4, by=(0, 1, 2))
    with pytest.raises(PushError, match=r"contributors are \[2\]; a step needs at least 2"):
        served.push(2, 7, floats(9, 9, 9, 9), view=4, by=(2,))
    assert served.entered[0][-1] == (4, (0, 1))
    for worker in (0, 1):
        served.push(worker, 7, floats(1, 1, 1, 1), view=4, by=(0, 1))
    assert [list(result) for _, result in served.results(0)] == [[2, 2, 2, 2]]
    served.aggregator.disconnect(2)
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
    assert served.aggregator.memory_bytes == 4 * 16
    served.enter(2, 0)
    assert served.aggregator.memory_bytes == 3 * 16
    served.enter(2, 1)
    assert served.aggregator.memory_bytes == 0


@pytest.mark.parametrize("has_entered", [True, False])
def test_results_stay_for_a_member_that_declares_when_the_others_are_done(has_entered):
    served = Served(kept_steps=2)
    served.aggregator.connect(1)
    served.enter(2, *range(1 + has_entered))
    for step in range(2):
        served.push(0, step, floats(step, 0, 0, 0), view=2, by=(0,))
    served.aggregator.disconnect(0)
    assert served.aggregator.memory_bytes == 2 * 16
    if not has_entered:
        served.enter(2, 1)
    served.aggregator.declare(1, served.operation.message(0))
    for step in range(2):
        served.push(1, step, view=2, by=(0,))
    assert [result[0] for _, result in served.results(1)] == [0, 1]
    served.aggregator.disconnect(1)
    assert served.aggregator.memory_bytes == 0


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
    assert served.aggregator.memory_bytes == 16


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
    held = served.aggregator.memory_bytes
    for _ in range(100):
        with pytest.raises(PushError):
            served.push(0, 8, floats(1, 2, 3, 4))
    assert served.aggregator.memory_bytes == held == 2 * 16


def test_only_one_result_is_held_while_all_workers_keep_up():
    served = Served()
    held = set()
    for step in range(50):
        for worker in (0, 1):
            served.push(worker, step, floats(1, 2, 3, 4))
        held.add(served.aggregator.memory_bytes)
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
    held = served.aggregator.memory_bytes
    with pytest.raises(PushError, match=text):
        served.push(0, **{"step": 6, "values": floats(1, 2, 3, 4)} | push)
    assert served.aggregator.memory_bytes == held
    for worker in (0, 1):
        served.push(worker, 6, floats(1, 1, 1, 1))
    np.testing.assert_array_equal(served.results(0)[-1][1], [2, 2, 2, 2])


def test_operations_meet_by_their_names_in_whatever_order_they_are_declared():
    served = Served(items=1)
    other = Operation("other", Kind.FLOATS, 1, 1, 2)
    served.aggregator.disconnect(1)
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
    served.aggregator.disconnect(1)
    served.push(0, 4, floats(1, 2, 3, 4), by=(0,))
    assert len(served.delivered[0]) == 1
    assert not served.delivered[1]


def test_law_10_a_worker_that_pushes_more_than_its_share_is_refused_and_no_other():
    served = Served(max_bytes=40)
    served.push(0, 5, floats(1, 2, 3, 4), view=1)
    text = "the ps holds 0 MB of this worker's pushes; allowed are 0: start more ps"
    with pytest.raises(PushError, match=text):
        served.push(0, 6, floats(1, 2, 3, 4), view=1)
    assert served.aggregator.memory_bytes == 16
    served.push(1, 5, floats(1, 1, 1, 1), view=1)
    np.testing.assert_array_equal(served.results(1)[0][1], [2, 3, 4, 5])
    served.push(0, 6, floats(1, 2, 3, 4), view=1)  # pushes of a finished step do not count


@pytest.mark.parametrize(("share", "unread"), [(10, 20), (16, 32), (20, 32), (40, 40)])
def test_unread_results_are_those_of_two_steps_within_the_limit_or_a_share(share, unread):
    assert Served(max_bytes=2 * share).aggregator.max_unread(0, 2) == unread


def test_pushes_in_a_view_that_the_worker_left_do_not_count():
    served = Served(workers=3, kept_steps=0, max_bytes=3 * 24)
    for step in range(6):  # each step begins in one view and ends in the next
        served.push(0, step, floats(1, 2, 3, 4), view=step + 1)
        assert served.aggregator.memory_bytes == 16
        served.enter(step + 2, 0, 1, 2)
        for worker in range(3):  # worker 2 pushes last
            served.push(worker, step, floats(1, 2, 3, 4), view=step + 2)
    assert [step for step, _ in served.results(0)] == list(range(6))


def test_a_push_counts_with_its_whole_message():
    served = Served(items=0, max_bytes=2 * 100)
    content = bytearray(60)
    header = Header(step=0, contributors=groups.pack([0, 1]), view=1)
    served.aggregator.push(0, header, memoryview(content)[60:])
    assert served.aggregator.memory_bytes == 60
    header.step = 1
    with pytest.raises(PushError, match="allowed are 0: start more ps"):
        served.aggregator.push(0, header, memoryview(content)[60:])


def test_no_result_is_kept_if_no_worker_can_be_behind():
    served = Served(kept_steps=0)
    for worker in (0, 1):
        served.push(worker, 0, floats(1, 2, 3, 4), view=1)
    assert served.aggregator.memory_bytes == 0
    assert len(served.results(1)) == 1


def test_results_for_slow_workers_are_dropped_if_memory_is_short():
    served = Served(kept_steps=16, max_bytes=4 * 16)
    for step in range(5):
        for worker in (0, 1):
            served.push(worker, step, floats(1, 2, 3, 4))
        assert served.aggregator.memory_bytes <= 4 * 16
    for step, is_gone in ((3, True), (4, False)):
        served.push(0, step, floats(1, 2, 3, 4))
        assert served.headers(0)[-1].gone == is_gone


def test_nothing_is_kept_of_operations_that_no_worker_declares_any_more():
    served = Served()
    for i in range(3):  # the view stays, so only a new stream ends the operation
        served.aggregator.disconnect(1)
        served.aggregator.declare(1, Operation(f"other {i}", Kind.FLOATS, 4, 1, 2).message(0))
        served.enter(1, 1)
        served.push(1, 0, floats(1, 2, 3, 4))
        assert served.aggregator.memory_bytes == 16
    served.push(0, 0, floats(1, 2, 3, 4))
    served.aggregator.disconnect(1)
    assert served.aggregator.memory_bytes == 16  # of worker 0's operation
    served.aggregator.declare(1, served.operation.message(0))
    served.enter(1, 1)
    served.push(1, 0, floats(1, 1, 1, 1))
    np.testing.assert_array_equal(served.results(0)[0][1], [2, 3, 4, 5])


def test_a_view_forgotten_while_a_result_is_computed_leaves_nothing_behind():
    reducing, go_on = threading.Event(), threading.Event()

    def reduce(operation, parts):
        reducing.set()
        assert go_on.wait(HANG_SECS)
        return PackedArithmetic(ReferencePacking()).reduce(operation, parts)

    served = Served(reduce=reduce)
    served.push(0, 0, floats(1, 2, 3, 4), view=1)
    pushing = threading.Thread(
        target=served.push, args=(1, 0, floats(1, 2, 3, 4)), kwargs={"view": 1}
    )
    pushing.start()
    assert reducing.wait(HANG_SECS)
    served.aggregator.disconnect(1)
    served.enter(2, 0, members=(0,))
    assert served.aggregator.memory_bytes == 0
    go_on.set()
    pushing.join(HANG_SECS)
    assert served.aggregator.memory_bytes == 0
