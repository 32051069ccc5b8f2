"""Workers that hang, or are not ready in time: they are abandoned, or end the training."""

import re

import pytest

from terngrad.testing.coordination import (
    SECS,
    CoordinatedWorkers,
    members,
    receivers,
    started_workers,
)


def test_a_worker_that_hangs_is_named_or_abandoned():
    for elastic in (False, True):
        cluster, _ = started_workers(2, elastic=elastic)
        for seconds in range(int(SECS) + 3):
            cluster.progress(0, 5)
            cluster.progress(1, 4)
            if cluster.outcome is None:
                cluster.pass_secs(1 if seconds else 0)
        if elastic:
            assert cluster.dropped == [1]
            assert cluster.taken()[0] == ["report_state"]
            cluster.connect(1)  # its other threads open another stream
            cluster.report_live(0, steps=5)
            (view,) = cluster.taken()[0]
            assert members(view) == (0,)
            cluster.give(0, "at the end", b"")
            assert cluster.taken() == {0: ["values"]}
            cluster.report_live(1, steps=4)  # it no longer hangs
            assert cluster.taken() == {0: ["report_state"]}
        else:
            assert cluster.outcome.startswith("worker 1 (host1:1): no next batch for 10 s")


def test_a_backup_worker_that_hangs_is_abandoned_and_two_end_the_training():
    for hanging in ([2], [1, 2]):
        cluster, _ = started_workers(3, needed=2)
        for _ in range(int(SECS) + 3):
            for worker in range(3):
                cluster.progress(worker, 4 if worker in hanging else 5)
            if cluster.outcome is None:
                cluster.pass_secs(1)
        if len(hanging) == 1:
            assert cluster.outcome is None
            assert cluster.dropped == [2]
            assert cluster.taken()[0] == ["report_state"]
        else:
            named = "worker 1 (host1:1), worker 2 (host2:1): no next batch for 10 s"
            assert cluster.outcome.startswith(named)


@pytest.mark.parametrize("rules", [{"elastic": True}, {"needed": 1}], ids=str)
@pytest.mark.parametrize("batches", [3, None], ids=["within a step", "busy"])
def test_a_worker_that_hangs_in_a_step_is_abandoned_but_not_a_busy_one(rules, batches):
    cluster, view = started_workers(3, **rules)
    cluster.progress(1, batches)
    cluster.lose(2)
    cluster.taken()
    cluster.report_live(0, steps=1, view=view)
    cluster.pass_secs(SECS + 1)
    assert cluster.outcome is None
    if batches is None:
        assert not cluster.dropped
        assert 0 not in cluster.taken()  # there is no view
    else:
        assert cluster.dropped == [1]
        assert members(cluster.taken()[0][-1]) == (0,)


def test_no_worker_is_abandoned_for_a_worker_without_a_state():
    cluster = CoordinatedWorkers(workers=3, elastic=True)
    cluster.begin(0, 1)
    cluster.pass_secs(SECS + 1)
    for worker in (0, 1):
        cluster.progress(worker, 3)
    cluster.join(2)
    cluster.pass_secs(SECS + 1)
    assert (cluster.outcome, cluster.dropped) == (None, [])


@pytest.mark.parametrize("rules", [{"elastic": True}, {"needed": 1}], ids=str)
def test_a_worker_that_hangs_before_the_first_view_is_abandoned_but_not_the_chief(rules):
    for hanging in (0, 1):
        cluster = CoordinatedWorkers(workers=2, **rules)
        for worker in (0, 1):
            cluster.connect(worker)
        cluster.report(1 - hanging)
        cluster.pass_secs(10 * SECS - 1)
        assert (cluster.outcome, cluster.dropped) == (None, [])
        cluster.pass_secs(2)
        if hanging:
            assert (cluster.outcome, cluster.dropped) == (None, [1])
            assert members(cluster.taken()[0][-1]) == (0,)
        else:  # it alone has the state
            assert cluster.outcome.startswith("worker 0 (host0:1) hangs")


def stall(cluster, batches, counts=(0, 0)):
    """Both workers of a cluster are in the same step for ten time-outs."""
    for operations in counts:
        for worker in (0, 1):
            cluster.progress(worker, batches, operations)
        cluster.pass_secs(5 * SECS + 1)


def test_operations_within_a_call_of_many_batches_count_as_progress():
    cluster, _ = started_workers(2)
    stall(cluster, 5, counts=(7, 8))
    assert (cluster.taken(), cluster.outcome) == ({}, None)
    cluster.pass_secs(5 * SECS)
    assert cluster.taken() == {0: ["report_state"], 1: ["report_state"]}


@pytest.mark.parametrize("rules", [{"elastic": True}, {"needed": 1}, {}], ids=str)
def test_a_worker_that_hangs_amid_the_step_of_all_is_abandoned_or_named(rules):
    cluster, view = started_workers(2, **rules)
    stall(cluster, 5)
    assert (cluster.taken(), cluster.outcome) == ({0: ["report_state"], 1: ["report_state"]}, None)
    cluster.report_live(0, steps=4, view=view)
    cluster.progress(0, None)
    cluster.pass_secs(SECS - 1)
    assert (cluster.taken(), cluster.outcome) == ({}, None)
    cluster.pass_secs(2)
    if rules:
        assert (cluster.outcome, cluster.dropped) == (None, [1])
        assert members(cluster.taken()[0][-1]) == (0,)
    else:
        assert cluster.outcome == "worker 1 (host1:1) hangs: it has not reported its step for 11 s"


def test_a_worker_may_reconnect_before_a_hung_worker_ends_the_training():
    cluster, view = started_workers(2, needed=1)
    stall(cluster, 5)
    cluster.report_live(0, steps=4, view=view)
    cluster.progress(0, None)
    cluster.pass_secs(SECS - 1)
    cluster.lose(0)
    cluster.pass_secs(2)
    assert cluster.outcome is None
    cluster.connect(0)
    cluster.pass_secs(0)
    assert cluster.outcome is None
    cluster.report_live(0, steps=4, view=view)
    cluster.pass_secs(0)
    assert members(cluster.taken()[0][-1]) == (0,)


def test_a_step_that_fails_twice_for_all_workers_ends_the_training():
    cluster, view = started_workers(2)
    for steps in (4, 7):
        stall(cluster, steps + 1)
        assert cluster.taken() == {0: ["report_state"], 1: ["report_state"]}
        cluster.report_live(0, 1, steps=steps, view=view)
        (view,) = cluster.taken()[0]
        assert members(view) == (0, 1)
    stall(cluster, 8)
    assert cluster.outcome == "no worker made a step for 100 s"


def test_a_backup_worker_that_stands_still_is_noticed_although_the_others_are_done():
    cluster, _ = started_workers(2, needed=1)
    cluster.progress(0, None)
    cluster.send(0, bye=True)
    stall(cluster, 5)
    assert cluster.taken()[1] == ["report_state"]


def test_the_chief_starts_anew_if_the_only_worker_with_the_state_hangs_for_long():
    cluster, _ = started_workers(2, elastic=True)
    cluster.progress(1, 3)
    cluster.pass_secs(5 * SECS)
    cluster.lose(0)
    cluster.join(0)
    cluster.pass_secs(5 * SECS - 1)
    assert (cluster.outcome, cluster.dropped) == (None, [])
    cluster.pass_secs(2)
    assert (cluster.outcome, cluster.dropped) == (None, [1])
    assert members(cluster.taken()[0][-1]) == (0,)


def test_a_member_may_be_lost_for_less_time_than_a_worker_before_the_first_view():
    cluster = CoordinatedWorkers(workers=2, elastic=True, return_secs=0.5)
    cluster.join(0)
    cluster.pass_secs(SECS - 1)
    assert not cluster.taken()  # no view without the other one
    cluster.join(1)
    assert members(cluster.taken()[0][-1]) == (0, 1)
    cluster.lose(1)
    cluster.pass_secs(1)
    assert cluster.taken()[0] == ["report_state"]


def one_lost_and_one_about_to_join():
    """Returns a cluster with a view of 0 and 1: 1 is lost, 0 waits, 2 builds its net."""
    cluster = CoordinatedWorkers(workers=3, needed=2)
    for worker in (0, 1):
        cluster.join(worker)
    cluster.pass_secs(SECS + 1)
    (view,) = cluster.taken()[0]
    assert members(view) == (0, 1)
    cluster.connect(2)
    cluster.lose(1)
    cluster.pass_secs(SECS + 1)
    cluster.report_live(0, steps=30, view=view)
    return cluster


def test_a_silent_worker_is_lost_since_it_was_last_heard_of():
    cluster, _ = started_workers(2)
    cluster.lose(1, "is silent", silent_secs=SECS / 2)
    cluster.pass_secs(SECS / 2 - 1)
    assert cluster.outcome is None
    cluster.pass_secs(2)
    assert cluster.outcome.startswith("worker 1 (host1:1) is silent")


def test_an_elastic_training_waits_shortly_for_a_worker_while_another_has_the_state():
    cluster, _ = started_workers(2, elastic=True, return_secs=0.5)
    cluster.lose(1)
    cluster.pass_secs(0.4)
    assert cluster.taken() == {}
    cluster.pass_secs(0.2)
    assert cluster.taken() == {0: ["report_state"]}


def is_kept(cluster, worker, step):
    """Whether a worker that comes back before the time-out goes on where it was."""
    cluster.pass_secs(SECS / 2)
    assert cluster.outcome is None
    cluster.connect(worker)
    cluster.report_live(worker, steps=step)
    cluster.pass_secs(1)
    views = [each[-1] for each in cluster.taken().values() if hasattr(each[-1], "steps")]
    return bool(views) and all(view.steps == step and not view.is_first for view in views)


def test_the_only_worker_with_the_state_may_be_lost_for_the_time_out():
    cluster, _ = started_workers(2, elastic=True, return_secs=0.5)
    cluster.lose(1)
    cluster.pass_secs(1)
    cluster.connect(1)
    cluster.join(1)  # started again, without the state
    cluster.lose(0, "is silent", silent_secs=SECS / 2)
    assert is_kept(cluster, 0, 5)


def test_a_receiver_that_confirms_the_state_goes_on_soon_without_its_donor():
    cluster, _ = started_workers(2, elastic=True, return_secs=0.5)
    cluster.lose(1)
    cluster.pass_secs(1)
    cluster.join(1)
    cluster.report_live(0, steps=5)
    view = cluster.taken()[1][-1]
    assert receivers(view) == (1,)
    for number, orders in ((view.number - 1, {}), (view.number, {1: ["report_state"]})):
        cluster.send(1, has_state=number)
        cluster.lose(0)
        cluster.pass_secs(0.6)
        assert cluster.taken() == orders
        cluster.connect(0)


def test_the_only_worker_with_the_state_is_waited_for_where_the_other_hangs():
    cluster, _ = started_workers(2, elastic=True, return_secs=0.5)
    stall(cluster, 5)
    cluster.report_live(0, steps=4)
    cluster.pass_secs(SECS + 1)  # worker 1 hangs, and is abandoned
    cluster.connect(1)  # by another thread
    cluster.lose(0)
    cluster.pass_secs(1)
    assert cluster.outcome is None


def test_workers_that_were_all_lost_at_once_are_waited_for():
    cluster, _ = started_workers(2, elastic=True, return_secs=0.5)
    for worker in (0, 1):
        cluster.lose(worker)
    cluster.pass_secs(2)
    cluster.connect(0)
    cluster.report_live(0, steps=5)
    cluster.pass_secs(SECS / 2)
    assert (cluster.taken(), cluster.outcome) == ({}, None)
    cluster.connect(1)
    cluster.report_live(1, steps=5)
    assert members(cluster.taken()[0][-1]) == (0, 1)
    cluster.lose(1)  # alone
    cluster.pass_secs(1)
    assert cluster.taken()[0] == ["report_state"]


def test_a_lost_worker_is_named_beside_one_that_does_not_get_ready():
    cluster = one_lost_and_one_about_to_join()
    while cluster.outcome is None:
        cluster.pass_secs(SECS)
    assert re.fullmatch(
        r"worker 1 \(host1:1\) died, and did not come back within 10 s; "
        r"worker 2 \(host2:1\) has connected but was not ready within 1\d\d s",
        cluster.outcome,
    )


def test_a_lost_worker_is_named_beside_one_that_hangs_before_the_first_view():
    cluster = CoordinatedWorkers(workers=3, elastic=True)
    cluster.connect(*range(3))
    cluster.lose(0)
    cluster.report(1)
    cluster.pass_secs(10 * SECS + 1)
    assert cluster.outcome == (
        "worker 0 (host0:1) died, and did not come back within 10 s; "
        "worker 2 (host2:1) hangs: it has not reported its step for 101 s"
    )


def test_a_worker_that_hangs_is_abandoned_although_another_joins_and_leaves():
    cluster, view = started_workers(4, needed=2)
    cluster.progress(1, 5)
    cluster.lose(3)
    cluster.report_live(0, 2, steps=9, view=view)
    for _ in range(12):  # while 1 hangs in a step
        cluster.join(3)
        cluster.lose(3)
        cluster.progress(1, 5)
        cluster.pass_secs(SECS / 4)
    view = next(order for order in cluster.taken()[0] if order != "report_state")
    assert members(view) == (0, 2)


def test_too_few_members_wait_for_a_worker_that_is_about_to_join():
    cluster = one_lost_and_one_about_to_join()
    assert cluster.outcome is None
    cluster.report(2)
    view = cluster.taken()[0][-1]
    assert (members(view), receivers(view)) == ((0, 2), (2,))


def test_a_worker_that_is_busy_for_too_long_is_abandoned_if_the_others_can_continue():
    cluster, view = started_workers(2, elastic=True)
    cluster.progress(1, None)
    cluster.report_live(0, steps=1, view=view)
    cluster.taken()
    cluster.pass_secs(10 * SECS + 1)
    assert (cluster.outcome, cluster.dropped) == (None, [1])
    assert members(cluster.taken()[0][-1]) == (0,)


def test_a_ps_ends_with_the_other_workers_although_one_hangs():
    cluster, _ = started_workers(2, elastic=True)
    for _ in range(2):
        for worker, batches in ((0, 5), (1, 4)):
            cluster.progress(worker, batches)
        cluster.pass_secs(SECS + 1)
    assert cluster.dropped == [1]
    cluster.connect(1)
    cluster.taken()
    cluster.send(0, bye=True)
    assert cluster.outcome == ""
    assert cluster.taken() == {1: ["finished"]}


def test_a_finished_training_whose_last_worker_hangs_on_a_new_stream_is_finished():
    cluster, _ = started_workers(2, needed=1)
    cluster.reconnect(1)
    cluster.send(0, bye=True)
    cluster.pass_secs(10 * SECS + 1)
    assert cluster.outcome == ""


def test_a_member_that_never_reports_its_state_is_named():
    cluster, view = started_workers(2)
    cluster.report_live(0, steps=1, view=view)
    cluster.pass_secs(10 * SECS + 1)
    assert cluster.outcome == "worker 1 (host1:1) hangs: it has not reported its step for 101 s"
