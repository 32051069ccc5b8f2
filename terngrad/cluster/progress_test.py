"""Which processes count as behind."""

import pytest

from terngrad.cluster.progress import OperationProgress, ProcessProgress, StallDetector, divergence


def after(*moments):
    """Returns a `StallDetector` with 60 s that saw these moments: (seconds, batches by process)."""
    stalls = StallDetector(timeout_secs=60.0)
    for now, batches in moments:
        for rank, count in enumerate(batches):
            stalls.note(rank, count, now)
    return stalls


@pytest.mark.parametrize(
    ("moments", "expected"),
    [
        ([(0, [5, 4, 5]), (61, [5, 4, 5])], [1]),
        ([(0, [5, 4, 4]), (61, [5, 4, 4])], [1, 2]),
        ([(0, [5, 4, 5]), (59, [5, 4, 5])], []),  # not yet
        ([(0, [5, 5, 5]), (9999, [5, 5, 5])], []),  # all compute
        ([(0, [5, None, 5]), (9999, [5, None, 5])], []),  # 1 compiles, saves, writes summaries
        ([(0, [None, 4, 5]), (61, [None, 4, 5])], [1]),  # 0 saves, 1 hangs
        ([(0, [5, None, 5]), (99, [5, 4, 5]), (110, [5, 4, 5])], []),  # 1 saved, and is back
        ([(0, [5, 4]), (50, [5, 5]), (70, [6, 5])], []),  # they move
        ([(0, [None, None]), (9999, [None, None])], []),
    ],
)
def test_who_is_behind_while_nothing_moves_is_late(moments, expected):
    assert after(*moments).late(moments[-1][0]) == expected


@pytest.mark.parametrize(
    ("moments", "expected"),
    [
        ([(0, [5, 5]), (601, [5, 5])], True),
        ([(0, [5, 5]), (599, [5, 5])], False),
        ([(0, [5, None]), (9999, [5, None])], False),  # 1 compiles, saves, writes summaries
        ([(0, [5, 5]), (550, [6, 5]), (650, [6, 5])], False),  # they move
        ([], False),
    ],
)
def test_a_training_without_progress_for_ten_time_outs_is_given_up(moments, expected):
    now = moments[-1][0] if moments else 9999
    assert after(*moments).should_give_up(now) == expected


def test_operations_within_a_call_of_many_batches_are_progress():
    stalls = after((0, [5, 5]))
    for now in (500.0, 1000.0):
        for rank in range(2):
            stalls.note(rank, 5, now, operations=int(now))
    assert not stalls.should_give_up(1500.0)
    assert stalls.should_give_up(1601.0)


@pytest.mark.parametrize(
    ("moments", "expected"),
    [
        ([(0, [5, 4]), (61, [5, 4])], [0, 1]),
        ([(0, [5, 4]), (30, [6, 4]), (61, [6, 4])], [1]),
        ([(0, [5, None]), (9999, [6, None])], []),  # one moves, and one saves
    ],
)
def test_who_is_within_one_step_for_too_long_is_stuck(moments, expected):
    assert after(*moments).stuck(moments[-1][0]) == expected


def test_a_process_may_be_within_a_step_for_several_time_outs():
    stalls = after((0, [5, 6]), (100, [6, 6]))
    assert stalls.stuck(161, time_outs=2) == [1]
    assert stalls.stuck(161) == [0, 1]


def test_the_process_that_took_most_batches_counts():
    assert after((0, [5, None, 6])).max_batches == 6
    assert after((0, [None])).max_batches == 0


def test_batches_count_only_within_steps():
    progress = ProcessProgress()
    progress.tick()
    assert progress.batches is None
    with progress.steps(10):
        progress.tick()
        assert progress.batches == 11
    assert progress.batches is None


GATHER, STEP = OperationProgress(5, "all_gather"), OperationProgress(5, "a step")


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        (
            [GATHER, STEP, STEP],
            "number 5 is all_gather on worker 0 and a step on worker 1, worker 2",
        ),
        (
            [OperationProgress(6, "barrier"), GATHER, STEP],
            "number 5 is all_gather on worker 1 and a step on",
        ),
        ([GATHER, GATHER], ""),
        ([STEP, OperationProgress(5, "a call of reducer 1")], ""),  # in a graph, and outside
        (
            [
                OperationProgress(5, "a call of reducer 0"),
                OperationProgress(5, "a call of reducer 1"),
            ],
            "number 5 is a call of reducer 0 on worker 0 and a call of reducer 1 on worker 1",
        ),
        (
            [GATHER, OperationProgress(4, "a step"), OperationProgress(6, "barrier")],
            "",
        ),  # on their way
        ([OperationProgress(), OperationProgress(5), GATHER], ""),  # that tell nothing
    ],
)
def test_processes_in_different_operations_of_the_same_number_are_named(operations, expected):
    found = divergence(dict(enumerate(operations)), "worker {}".format)
    why = "the workers do not run the same operations: "
    assert found.startswith(why + expected if expected else "")
    assert bool(found) == bool(expected)


@pytest.mark.parametrize("reported", [None, 3, [3], [3, [], 1], [3, "a", "b"], [3, "a" * 257, 1]])
def test_law_10_malformed_progress_counts_as_none(reported):
    assert OperationProgress.read(reported) == OperationProgress()
    assert OperationProgress.read([3, "a step", 2]) == OperationProgress(3, "a step", 2)


def test_progress_counts_operations_and_knows_the_last_one():
    progress = ProcessProgress()
    progress.begin("barrier")
    progress.begin("a step")
    assert progress.operations == OperationProgress(2, "a step")
    progress.begin("a step")
    assert progress.operations == OperationProgress(3, "a step", alike=2)
