"""Sizes of operations, and how several ps share them."""

import itertools

import pytest

from terngrad.exchange.exchange import Owner
from terngrad.exchange.parameter_server.operations import (
    InvalidOperationError,
    Kind,
    Operation,
    PieceAssignment,
)
from terngrad.planes import plane_count, share_of
from terngrad.service.messages import PIECE_BYTES


def operation(kind=Kind.CODES, items=1000, local_nodes=1, workers=2, name="a", max_code=1):
    return Operation(name, kind, items, local_nodes, workers, max_code)


def max_bits(size, whole):
    """The most bits a value in which the pieces of codes travel."""
    return sum(map(size, range(whole.pieces))) * 8 / (32 * whole.items)


@pytest.mark.parametrize(
    ("workers", "planes", "saved"),
    [(1, 2, 0), (2, 2, 1), (3, 3, 0), (4, 4, 0), (7, 4, 0), (8, 5, 0)],
)
def test_law_7_codes_travel_in_at_most_2_bits_up_and_those_of_the_others_sum_down(
    workers, planes, saved
):
    codes = operation(workers=workers)
    assert max_bits(codes.push_size, codes) == 2
    assert max_bits(codes.result_size, codes) == planes
    assert plane_count(workers) - planes == saved
    assert codes.leaves_out_own == bool(saved)
    assert codes.largest_result == (workers - 1 if saved else workers)


def test_codes_are_packed():
    assert operation(max_code=127, workers=16).is_packed
    assert not operation(Kind.FLOATS).is_packed


def test_two_workers_of_several_nodes_leave_out_all_of_their_own():
    codes = operation(local_nodes=3, workers=2)
    assert codes.leaves_out_own
    assert codes.largest_result == codes.largest_pushed == 3


@pytest.mark.parametrize("kind", [Kind.MAX, Kind.FLOATS, Kind.HALVES])
def test_only_sums_of_codes_leave_out_a_part(kind):
    assert not operation(kind).leaves_out_own


@pytest.mark.parametrize("items", [0, 5, 100, 3000, 5_000_000])
@pytest.mark.parametrize("workers", [1, 3, 8])
def test_each_piece_of_coded_sums_lies_in_the_share_of_one_worker(items, workers):
    up, down = (operation(k, items, 1, workers) for k in (Kind.SCATTER_CODES, Kind.GATHER_CODES))
    everyone = range(workers)
    for piece in range(up.pieces):
        (owner,) = (worker for worker in everyone if up.receives(worker, piece, everyone))
        first, end = share_of(items, workers, owner)
        assert first <= up.piece_items(piece)[0] <= up.piece_items(piece)[1] <= end
        assert all(up.pushes(worker, piece, everyone) for worker in everyone)
    for piece in range(down.pieces):
        (owner,) = (worker for worker in everyone if down.pushes(worker, piece, everyone))
        first, end = share_of(items, workers, owner)
        assert first <= down.piece_items(piece)[0] <= down.piece_items(piece)[1] <= end
        assert all(down.receives(worker, piece, everyone) for worker in everyone)
    assert (up.largest_result, down.largest_result) == (workers, 1)
    assert not up.leaves_out_own and not down.leaves_out_own


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_the_contributors_to_a_step_own_all_shares_as_evenly_as_possible(workers):
    items = 32 * workers  # a block for each share
    up, down = (operation(k, items, 1, workers) for k in (Kind.SCATTER_CODES, Kind.GATHER_CODES))
    subsets = (itertools.combinations(range(workers), size) for size in range(1, workers + 1))
    for contributors in itertools.chain(*subsets):
        counts = dict.fromkeys(contributors, 0)
        for piece in range(workers):
            owners = [w for w in range(workers) if up.receives(w, piece, contributors)]
            assert owners == [w for w in range(workers) if down.pushes(w, piece, contributors)]
            counts[owners[0]] += len(owners)
        assert sum(counts.values()) == workers
        assert max(counts.values()) - min(counts.values()) <= 1
        for index, worker in enumerate(contributors):  # as the worker itself says
            own = Owner(index, len(contributors), workers).own
            assert [p for p in range(workers) if up.receives(worker, p, contributors)] == [*own]


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("items", [0, 1, PIECE_BYTES // 8, PIECE_BYTES // 8 + 1, 5_000_000])
def test_pieces_cover_all_items_once_and_are_limited(kind, items):
    whole = operation(kind, items)
    covered = octets = 0
    for piece in range(whole.pieces):
        first, end = whole.piece_items(piece)
        assert first == covered
        covered = end
        assert whole.push_size(piece) <= PIECE_BYTES
        octets += whole.push_size(piece)
    assert (covered, octets) == (items, items * whole.pushed_bytes)


@pytest.mark.parametrize(
    ("items", "sizes"),
    [
        (1 << 15, [1 << 15]),
        ((1 << 15) + 1, [1 << 15, 1]),
        (100_001, [32768, 32768, 32768, 1697]),
        (200_001, [50001, 50001, 50001, 49998]),
        ((1 << 19) + 1, [1 << 17] * 4 + [1]),
    ],
)
def test_medium_operations_travel_in_4_pieces_unless_these_were_small(items, sizes):
    codes = operation(items=items)
    ranges = [codes.piece_items(i) for i in range(codes.pieces)]
    assert [end - first for first, end in ranges] == sizes


@pytest.mark.parametrize(("max_code", "up", "down"), [(2, 3, 5), (7, 4, 6), (127, 8, 10)])
def test_law_7_larger_codes_take_at_most_the_bits_that_their_sums_need(max_code, up, down):
    codes = operation(max_code=max_code, workers=4)
    assert max_bits(codes.push_size, codes) == up
    assert max_bits(codes.result_size, codes) == down


@pytest.mark.parametrize("max_code", [1, 2, 100])
def test_operations_survive_their_message(max_code):
    whole = operation(max_code=max_code)
    assert Operation.read(whole.message(3), 2) == whole


def test_golden_bytes_of_a_ternary_operation():
    assert (
        operation().message(3).SerializeToString()
        == b"\x08\x03\x12\x01a\x18\x02\x20\xe8\x07\x28\x01"
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"name": ""}, "a name of 0 characters"),
        ({"name": "a" * 257}, "a name of 257 characters"),
        ({"local_nodes": 0}, "0 nodes"),
        ({"local_nodes": 40000}, "80000 nodes; allowed are 1 to 65536"),
        ({"items": 1 << 60}, "a has 1152921504606846976 items"),
        ({"max_code": 0}, "max_code of a is 0; allowed are 1 to 32768"),
        ({"max_code": 32769}, "max_code of a is 32769; allowed are 1 to 32768"),
    ],
)
def test_law_10_impossible_operations_are_named(change, text):
    with pytest.raises(InvalidOperationError, match=text):
        operation(**change)


def test_law_10_unknown_kinds_are_named():
    message = operation().message(0)
    message.kind = 99
    with pytest.raises(InvalidOperationError, match=r"kind is 99; allowed are 1 \(MAX\), 2"):
        Operation.read(message, 2)


def test_several_ps_share_the_bytes_evenly_even_of_one_large_operation():
    assignment = PieceAssignment(range(3))
    sizes = [1_000_000, 3, 17_000_000, 500, 40_000, 900_000]
    loads = [0, 0, 0]
    for i, items in enumerate(sizes):
        whole = operation(items=items, name=f"net/{i}")
        for piece, ps in enumerate(assignment.assign(whole)):
            loads[ps] += whole.push_size(piece)
    assert max(loads) - min(loads) <= PIECE_BYTES


def test_the_assignment_of_a_family_does_not_depend_on_other_families():
    family = [operation(items=items, name=f"one/{items}") for items in (500_000, 3, 900_000)]
    others = [operation(items=700_000, name="two/1"), operation(items=9, name="losses/floats")]
    first, second = PieceAssignment((0, 1)), PieceAssignment((0, 1))
    before = [first.assign(each) for each in [*family, *others]]
    after = [second.assign(each) for each in [*others, *family]]
    assert before[:3] == after[2:]
    assert before[3:] == after[:2]
