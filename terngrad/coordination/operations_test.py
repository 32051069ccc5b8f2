"""Values that the workers gather, and workers that do not run the same operations."""

import pytest

from terngrad.testing.coordination import SECS, CoordinatedWorkers, started_workers


def test_values_are_sent_when_all_workers_have_given_theirs_and_later_at_once():
    cluster = CoordinatedWorkers()
    cluster.connect(*range(3))
    cluster.give(0, "configuration", b"a")
    cluster.give(1, "configuration", b"b")
    assert cluster.taken() == {}
    cluster.give(2, "configuration", b"c")
    assert [o.values.contents for o in cluster.orders[1]] == [[b"a", b"b", b"c"]]
    for worker in range(3):
        cluster.report(worker)
    cluster.taken()
    cluster.reconnect(1)
    cluster.give(1, "configuration", b"other")
    assert [o.values.contents for o in cluster.orders[1]] == [[b"a", b"other", b"c"]]
    assert sorted(cluster.taken()) == [1]


def test_a_worker_that_joins_after_values_were_sent_gets_the_same_values():
    cluster = CoordinatedWorkers(workers=3, elastic=True)
    cluster.begin(0, 1)
    for worker in (0, 1):
        cluster.give(worker, "examples", b"100")
    cluster.pass_secs(SECS + 1)
    assert list(cluster.orders[1][0].values.contents) == [b"100", b"100"]
    cluster.connect(2)
    cluster.give(2, "examples", b"100")
    (order,) = cluster.orders[2]
    assert list(order.values.workers) == [0, 1]


def test_values_of_too_many_bytes_or_names_are_refused():
    cluster = CoordinatedWorkers(workers=1)
    cluster.connect(0)
    with pytest.raises(ValueError, match="value long: it has 65537 bytes; allowed are 65536"):
        cluster.give(0, "long", bytes(65537))
    cluster = CoordinatedWorkers(workers=2)
    cluster.connect(0, 1)
    for i in range(128):
        cluster.give(0, f"{i}", b"")
    with pytest.raises(ValueError, match="value more: there are too many names; allowed are 128"):
        cluster.give(0, "more", b"")


def test_names_that_nobody_waits_for_make_room_for_others():
    cluster, view = started_workers(2)
    contents = lambda worker: list(cluster.orders[worker][-1].values.contents)
    for i in range(200):
        for worker in (0, 1):
            cluster.give(worker, f"a new Reducer {i}", b"%d" % i, view.number)
            cluster.give(worker, "in use", b"", view.number - 200 + i)
        assert contents(0) == contents(1) == [b"", b""]
    cluster.reconnect(1)
    for i, found in ((199, [b"199", b"199"]), (100, [b"100", b"100"]), (0, [])):
        cluster.give(1, f"a new Reducer {i}", b"%d" % i, view.number)
        assert contents(1) == found
    cluster.give(1, "in use", b"new", view.number)
    cluster.give(0, "in use", b"new", view.number)
    assert contents(1) == contents(0) == [b"new", b"new"]


def test_a_name_that_was_dropped_is_used_again_in_a_later_round():
    cluster, view = started_workers(2)
    for i in [*range(150), 0]:
        for worker in (0, 1):
            cluster.give(worker, f"{i}", b"value", view.number - 150 + len(cluster.orders[0]))
        assert len(cluster.orders[0][-1].values.contents) == 2


def test_old_rounds_get_no_values_and_rounds_of_impossible_views_no_answer():
    cluster, view = started_workers(1)
    for round_, workers in ((5, [0]), (3, []), (4, [0])):
        cluster.give(0, "configuration", b"", round_)
        assert list(cluster.orders[0][-1].values.workers) == workers
        assert cluster.taken() == {0: ["values"]}
    cluster.give(0, "configuration", b"", view.number + 1)
    assert cluster.taken() == {}
    cluster.give(0, "configuration", b"", view.number)
    assert cluster.taken() == {0: ["values"]}


def test_values_of_processes_that_are_all_gone_are_not_sent_to_later_ones():
    cluster = CoordinatedWorkers(workers=2)
    for worker in (0, 1):
        cluster.connect(worker)
        cluster.give(worker, "configuration", b"before")
    for worker in (0, 1):
        cluster.lose(worker)
    cluster.taken()
    cluster.connect(0, 1)
    cluster.give(0, "configuration", b"after")
    assert cluster.taken() == {}
    cluster.give(1, "configuration", b"after")
    assert list(cluster.orders[0][-1].values.contents) == [b"after", b"after"]


def test_values_wait_for_a_member_that_may_come_back():
    cluster, _ = started_workers(2)
    cluster.lose(0)
    cluster.give(1, "at the end", b"1")
    assert cluster.taken() == {}
    cluster.connect(0)
    cluster.give(0, "at the end", b"1")
    assert cluster.taken() == {0: ["values"], 1: ["values"]}


def test_values_of_a_worker_that_fails_to_join_are_forgotten():
    cluster, _ = started_workers(2)
    cluster.lose(1)
    cluster.give(0, "configuration", b"right")
    cluster.connect(1)
    cluster.give(1, "configuration", b"wrong")
    cluster.send(1, failed="it does not fit")
    cluster.lose(1, "ended")
    cluster.orders[1].clear()
    cluster.connect(1)
    cluster.give(1, "configuration", b"right")
    (order,) = cluster.orders[1]
    assert list(order.values.contents) == [b"right", b"right"]


def test_values_are_not_shared_without_those_of_a_worker_that_left():
    cluster = CoordinatedWorkers(2)
    cluster.connect(0, 1)
    cluster.send(1, bye=True)
    cluster.begin_operation(0, 1)
    cluster.give(0, "gather", b"a")
    assert cluster.taken() == {0: ["end"]}


LEFT = "worker 1 (host1:1) left after 2 operations with the others, of which worker 0 (host0:1) has"


@pytest.mark.parametrize("leaves_first", [True, False])
@pytest.mark.parametrize("has_view", [True, False])
def test_a_worker_that_left_before_an_operation_of_the_others_is_named(leaves_first, has_view):
    cluster = CoordinatedWorkers(2)
    if has_view:
        cluster.begin(0, 1)
    for worker in (0, 1):
        cluster.connect(worker)
        cluster.begin_operation(worker, 2)
    leave = lambda: cluster.send(1, bye=True)
    go_on = lambda: cluster.begin_operation(0, 3)
    cluster.taken()
    first, second = (leave, go_on) if leaves_first else (go_on, leave)
    first()
    assert cluster.outcome is None
    second()
    assert cluster.outcome == f"{LEFT} begun 3: all need equally many batches and calls"
    assert cluster.taken()[0] == ["end"]


def test_a_worker_that_leaves_while_the_others_compute_ends_nobody():
    cluster, _ = started_workers(2)
    for worker in (0, 1):
        cluster.begin_operation(worker, 5)
    cluster.send(1, bye=True)
    cluster.pass_secs(3 * SECS)
    assert cluster.outcome is None
    cluster.send(0, bye=True)
    assert cluster.outcome == ""


def test_a_worker_that_leaves_before_all_have_connected_does_not_end_the_training():
    cluster = CoordinatedWorkers(2)
    cluster.connect(1)
    cluster.send(1, bye=True)
    assert cluster.outcome is None
    cluster.connect(0)
    cluster.begin_operation(0, 1)
    assert cluster.outcome.startswith("worker 1 (host1:1) left after 0 operations")


def test_a_training_that_one_worker_left_ends_when_the_others_do_not_come():
    cluster = CoordinatedWorkers(2)
    cluster.connect(1)
    cluster.send(1, bye=True)
    cluster.pass_secs(SECS - 1)
    assert cluster.outcome is None
    cluster.pass_secs(2)
    assert cluster.outcome == ""


@pytest.mark.parametrize("has_view", [True, False])
def test_workers_in_different_operations_are_named_and_end(has_view):
    cluster = CoordinatedWorkers(2)
    if has_view:
        cluster.begin(0, 1)
    for worker in (0, 1):
        cluster.connect(worker)
        cluster.begin_operation(worker, 4)
    cluster.begin_operation(0, 5, "all_gather")
    cluster.pass_secs(3 * SECS)  # worker 1 computes
    assert cluster.outcome is None
    cluster.taken()
    cluster.begin_operation(1, 5)
    where = "all_gather on worker 0 (host0:1) and a step on worker 1 (host1:1)"
    assert f"the workers do not run the same operations: number 5 is {where}: " in cluster.outcome
    assert cluster.taken() == {0: ["end"], 1: ["end"]}
