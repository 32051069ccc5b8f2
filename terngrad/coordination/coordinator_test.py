"""Views: which workers train together, from which state, and what ends a training."""

import time

import pytest

from terngrad.coordination import groups
from terngrad.testing.coordination import (
    SECS,
    CoordinatedWorkers,
    members,
    receivers,
    started_workers,
)


def test_training_begins_with_all_workers_from_the_chiefs_state():
    cluster = CoordinatedWorkers()
    for worker in (2, 0, 1):
        assert cluster.taken() == {}
        cluster.connect(worker)
        cluster.report(worker, 40 if worker == 0 else 0)
    views = cluster.taken()
    assert sorted(views) == [0, 1, 2]
    assert all(view == views[0] for view in views.values())
    (view,) = views[0]
    assert (members(view), view.steps, view.donor, view.needed) == ((0, 1, 2), 40, 0, 3)
    assert receivers(view) == (1, 2)
    assert view.is_first


def test_a_worker_that_does_not_join_ends_the_training_and_is_named():
    cluster = CoordinatedWorkers()
    assert cluster.begin(0, 1) == {}
    cluster.pass_secs(SECS - 1)
    assert cluster.outcome is None
    cluster.pass_secs(2)
    assert cluster.outcome == "worker 2 (host2:1) did not join within 10 s"
    assert cluster.taken() == {0: ["end"], 1: ["end"]}


def test_a_lost_chief_that_comes_back_gets_the_state_of_a_live_worker():
    cluster, first = started_workers(3)
    cluster.lose(0)
    cluster.pass_secs(SECS - 1)
    assert cluster.taken() == {}  # the step waits
    cluster.join(0, steps=5)  # from its checkpoint
    assert cluster.taken() == {1: ["report_state"], 2: ["report_state"]}
    cluster.report_live(1, steps=7, view=first)
    cluster.report_live(2, steps=8, view=first)
    views = cluster.taken()
    (view,) = views[1]
    assert sorted(views) == [0, 1, 2]
    assert (view.steps, view.donor, receivers(view)) == (8, 2, (0, 1))
    assert view.number > first.number
    assert not view.is_first
    assert cluster.outcome is None
    assert cluster.coordinator.receivers(2, view.number) == [0, 1]
    assert cluster.coordinator.receivers(2, first.number) == []
    assert cluster.coordinator.receivers(1, view.number) == []


def test_a_lost_worker_that_does_not_come_back_ends_the_training_and_is_named():
    cluster, _ = started_workers(3)
    cluster.lose(1, "died: its stream ended")
    cluster.pass_secs(SECS + 1)
    died = "worker 1 (host1:1) died: its stream ended"
    assert cluster.outcome == f"{died}, and did not come back within 10 s"
    assert cluster.taken() == {0: ["end"], 2: ["end"]}


def test_elastic_training_continues_without_a_lost_worker_and_lets_it_join_again():
    cluster, first = started_workers(3, elastic=True)
    cluster.lose(0)
    cluster.pass_secs(SECS + 1)
    assert cluster.taken() == {1: ["report_state"], 2: ["report_state"]}
    cluster.report_live(1, 2, steps=3, view=first)
    (second,) = cluster.taken()[1]
    assert (members(second), second.needed, receivers(second)) == ((1, 2), 2, ())
    cluster.join(0, steps=0)
    cluster.report_live(1, 2, steps=9, view=second)
    (third,) = cluster.taken()[0]
    assert (members(third), third.steps, receivers(third)) == ((0, 1, 2), 9, (0,))


def test_a_worker_that_missed_the_last_view_gets_the_state_of_that_view():
    cluster, first = started_workers(3, needed=2)
    cluster.lose(2, "cannot be reached")
    cluster.taken()
    cluster.report_live(0, 1, steps=5, view=first)
    (second,) = cluster.taken()[0]
    assert members(second) == (0, 1)
    cluster.connect(2)
    cluster.report_live(2, steps=6, view=first)  # only this worker had the result of step 5
    cluster.report_live(0, 1, steps=6, view=second)
    third = cluster.taken()[2][-1]
    assert (third.steps, third.donor, receivers(third)) == (6, 0, (2,))


def test_a_repeated_report_makes_no_second_view():
    cluster, view = started_workers(2)
    cluster.report(1)
    assert cluster.taken() == {}
    cluster.report_live(1, steps=3, view=view)
    assert cluster.taken() == {0: ["report_state"]}


@pytest.mark.parametrize("what", [{"view": 1 << 63}, {"steps": 1 << 63}, {"members": b"\xff"}])
def test_law_10_impossible_reports_are_refused(what):
    cluster = CoordinatedWorkers(workers=2)
    cluster.connect(0)
    with pytest.raises(ValueError, match=r"allowed (is up to|are 0 to 1)"):
        cluster.send(0, state_report=what)
    cluster.coordinator.watch()
    assert cluster.outcome is None


def test_a_worker_that_connects_after_the_end_learns_the_reason():
    cluster, _ = started_workers(2)
    cluster.send(0, failed="diverged")
    cluster.taken()
    cluster.connect(1)
    assert cluster.taken() == {1: ["end"]}


def test_the_last_worker_that_reconnects_learns_that_the_training_is_done():
    cluster, view = started_workers(2)
    cluster.send(0, bye=True)
    cluster.lose(1, "blinked")
    cluster.connect(1)
    cluster.taken()
    cluster.report_live(1, steps=9, view=view)
    assert cluster.taken() == {1: ["finished"]}
    cluster.send(1, bye=True)
    assert cluster.outcome == ""


def test_elastic_training_does_not_begin_without_a_state():
    cluster = CoordinatedWorkers(workers=2, elastic=True)
    cluster.begin(1)
    cluster.pass_secs(SECS + 1)
    assert "worker 0 (host0:1) did not join within 10 s, and no other worker" in cluster.outcome


def test_after_a_restart_the_views_of_live_workers_count_and_lost_workers_do_not():
    before = CoordinatedWorkers(elastic=True)
    (view,) = before.begin(0, 1, 2)[0]
    view.members, view.number = groups.pack((0, 2)), view.number + (1 << 30)
    cluster = CoordinatedWorkers(elastic=True)
    for worker in (0, 2):
        cluster.connect(worker)
        cluster.report_live(worker, steps=12, view=view)
    (found,) = cluster.taken()[0]
    assert (members(found), found.steps, receivers(found)) == ((0, 2), 12, ())
    assert found.number > view.number


@pytest.mark.parametrize("jump_secs", [-1e9, -60.0, 60.0, 1e9])
def test_a_clock_that_jumped_before_a_restart_ends_no_training_and_repeats_no_view(jump_secs):
    now = time.time()
    (view,) = CoordinatedWorkers(workers=2, wall_clock=lambda: now).begin(0, 1)[0]
    cluster = CoordinatedWorkers(workers=2, wall_clock=lambda: now + jump_secs)
    for worker in (0, 1):
        cluster.connect(worker)
        cluster.report_live(worker, steps=12, view=view)
    (found,) = cluster.taken()[0]
    assert (found.steps, receivers(found)) == (12, ())
    assert found.number > view.number
    cluster.report_live(0, steps=12, view=found)  # its number counts from now on
    assert cluster.taken() == {1: ["report_state"]}


def test_elastic_training_ends_if_all_workers_are_lost_before_it_began():
    cluster = CoordinatedWorkers(workers=2, elastic=True)
    cluster.connect(0)
    cluster.lose(0)
    cluster.pass_secs(SECS + 1)
    assert "worker 0 (host0:1) died" in cluster.outcome


def test_a_member_that_reports_no_state_gets_one():
    cluster, first = started_workers(3, needed=2)
    cluster.report(2, 6, is_live=False, view=first)
    cluster.report_live(0, 1, steps=6, view=first)
    (second,) = cluster.taken()[0][-1:]
    assert (second.donor, receivers(second)) == (0, (2,))


def test_a_member_that_fails_ends_the_training_but_a_joining_worker_does_not():
    cluster, _ = started_workers(3, elastic=True)
    cluster.reconnect(1)
    cluster.send(1, failed="batch_size is 8")
    assert cluster.outcome is None
    cluster.send(2, failed="a bad record")
    assert cluster.outcome == "worker 2 (host2:1) failed: a bad record"


def test_nobody_is_blamed_for_an_error_that_all_have():
    cluster, _ = started_workers(3)
    cluster.send(2, failed="step 7: entropy_loss is nan", shared=True)
    assert cluster.outcome == "step 7: entropy_loss is nan"


def test_a_worker_that_ends_all_without_a_failure_of_its_own_may_save():
    cluster, _ = started_workers(3)
    cluster.lose(2)
    cluster.send(0, failed="worker 0 was asked to end", shared=True)
    assert cluster.outcome == "worker 0 was asked to end"
    assert end_of(cluster, 1).saver == 0


def test_a_training_is_over_when_all_connected_workers_are_done():
    cluster, _ = started_workers(3, elastic=True)
    cluster.lose(1)
    cluster.send(0, bye=True)
    assert cluster.outcome is None
    cluster.send(2, bye=True)
    assert cluster.outcome == ""


def end_of(cluster, worker):
    """Returns the order that ends a worker."""
    (order,) = [order for order in cluster.orders[worker] if order.WhichOneof("what") == "end"]
    return order


@pytest.mark.parametrize(("lost", "saver"), [(2, 0), (0, 1)])
def test_the_first_remaining_member_saves_at_the_end(lost, saver):
    cluster, _ = started_workers(3)
    for worker in range(3):
        cluster.progress(worker, 1)
    cluster.lose(lost)
    cluster.pass_secs(SECS + 1)
    assert end_of(cluster, 1).saver == saver
    cluster.taken()
    cluster.connect(1)  # gets the order again
    assert end_of(cluster, 1).saver == saver


def test_a_worker_that_fails_or_hangs_does_not_save():
    cluster, _ = started_workers(2)
    cluster.progress(1, 1)
    cluster.send(0, failed="a bad record")
    assert end_of(cluster, 1).saver == 1
    cluster, _ = started_workers(2)
    for _ in range(2):
        for worker, batches in ((0, 4), (1, 5)):
            cluster.progress(worker, batches)
        cluster.pass_secs(SECS + 1)
    assert end_of(cluster, 1).saver == 1


def test_a_worker_that_has_only_started_does_not_save():
    cluster, view = started_workers(3)
    for worker in (0, 2):
        cluster.lose(worker)
    cluster.join(0)
    cluster.report_live(1, steps=5, view=view)
    cluster.pass_secs(SECS + 1)
    assert end_of(cluster, 1).saver == 1


def test_a_worker_that_waits_for_the_state_does_not_save():
    cluster, view = started_workers(3)
    cluster.lose(0)
    cluster.join(0)
    cluster.report_live(1, 2, steps=100, view=view)
    assert receivers(cluster.taken()[0][-1]) == (0,)
    cluster.lose(1)  # the donor
    cluster.pass_secs(SECS + 1)
    assert end_of(cluster, 0).saver == end_of(cluster, 2).saver == 2


def test_a_receiver_in_its_first_step_saves_if_no_other_worker_can():
    cluster, view = started_workers(2)
    cluster.lose(1)
    cluster.join(1)
    cluster.report_live(0, steps=5000, view=view)
    assert receivers(cluster.taken()[1][-1]) == (1,)
    cluster.lose(0)
    cluster.pass_secs(SECS + 1)
    assert end_of(cluster, 1).saver == 1


def test_a_ps_that_knows_no_steps_lets_the_workers_decide_who_saves():
    cluster = CoordinatedWorkers(workers=2)
    cluster.connect(1)
    cluster.pass_secs(SECS + 1)
    assert not end_of(cluster, 1).HasField("saver")


@pytest.mark.parametrize("elastic", [False, True])
def test_a_finished_training_whose_last_worker_dies_is_finished(elastic):
    cluster, _ = started_workers(2, elastic=elastic)
    cluster.send(0, bye=True)
    cluster.lose(1)
    assert cluster.outcome is None
    cluster.pass_secs(SECS + 1)
    assert cluster.outcome == ""


def test_a_worker_that_finishes_while_it_waits_for_a_view_is_in_no_view():
    cluster, view = started_workers(3, needed=1)
    cluster.report_live(0, steps=5, view=view)
    cluster.send(0, bye=True)
    cluster.report_live(1, 2, steps=5, view=view)
    assert members(cluster.taken()[1][-1]) == (1, 2)


def test_a_finished_worker_that_starts_again_joins():
    cluster, view = started_workers(2, elastic=True)
    cluster.send(0, bye=True)
    cluster.join(0)
    cluster.report_live(1, steps=5, view=view)
    assert receivers(cluster.taken()[0][-1]) == (0,)


def test_backup_workers_wait_for_a_chief_that_was_lost_before_it_gave_its_state():
    cluster, view = started_workers(3, needed=2)
    cluster.lose(0)
    for worker in (1, 2):
        cluster.report(worker, view=view)
    assert cluster.outcome is None
    cluster.connect(0)
    cluster.report(0, is_live=True, view=view)
    after = cluster.taken()[1][-1]
    assert (members(after), after.donor, receivers(after)) == ((0, 1, 2), 0, (1, 2))


def test_a_worker_that_has_the_state_is_waited_for_where_no_member_has_it():
    cluster, first = started_workers(2, elastic=True)
    cluster.lose(0)
    cluster.pass_secs(SECS)
    cluster.report_live(1, steps=2, view=first)  # goes on alone
    cluster.reconnect(1)
    cluster.connect(0)
    cluster.taken()
    cluster.report(1)
    assert cluster.outcome is None
    cluster.report_live(0, steps=1, view=first)
    view = cluster.taken()[1][-1]
    assert (view.donor, view.steps, receivers(view)) == (0, 1, (1,))


def lost(*servers):
    return {"lost_ps": groups.pack(servers)}


def test_a_view_excludes_the_ps_that_any_member_has_lost_until_they_are_back():
    cluster, view = started_workers(2, elastic=True, servers=3)
    cluster.send(0, **lost(1))  # its step is given up already
    assert cluster.taken() == {0: ["lost_ps", "report_state"], 1: ["lost_ps", "report_state"]}
    cluster.send(1, **lost(1, 2))
    cluster.report_live(0, 1, steps=5, view=view)
    view = cluster.taken()[0][-1]
    assert groups.unpack(view.lost_ps) == (1, 2)
    assert cluster.lines[-3:] == [
        "worker 0 (host0:1) cannot reach ps 1.",
        "worker 1 (host1:1) cannot reach ps 2.",
        "Workers 0 and 1 train from step 5 on, without ps 1 and 2.",
    ]
    assert cluster.coordinator.lost_ps == (1, 2)
    cluster.send(0, **lost())
    assert cluster.taken() == {}  # worker 1 does not reach them yet
    cluster.send(1, **lost(1))
    assert cluster.taken() == {0: ["report_state"], 1: ["report_state"]}
    cluster.report_live(0, 1, steps=9, view=view)
    assert groups.unpack(cluster.taken()[0][-1].lost_ps) == (1,)


def test_a_worker_that_joins_learns_which_ps_the_others_do_without():
    cluster, _ = started_workers(2, elastic=True, servers=2)
    cluster.send(0, **lost(1))
    cluster.lose(1)
    cluster.taken()
    cluster.connect(1)
    assert cluster.taken() == {1: ["lost_ps"]}


@pytest.mark.parametrize(
    ("elastic", "servers", "text"),
    [
        (True, (0,), "ps 0 cannot be lost"),
        (False, (1,), "ps 0 cannot be lost, nor others without elastic"),
        (True, (2,), "members that do not exist; allowed are 0 to 1"),
    ],
)
def test_law_10_a_worker_cannot_do_without_ps_that_the_training_needs(elastic, servers, text):
    cluster, _ = started_workers(2, elastic=elastic, servers=2)
    with pytest.raises(ValueError, match=text):
        cluster.send(0, **lost(*servers))


@pytest.mark.parametrize(("worker", "ends"), [(1, False), (0, True)])
def test_before_the_first_step_only_the_first_worker_ends_an_elastic_training(worker, ends):
    cluster = CoordinatedWorkers(elastic=True, coordinator_moves=True)
    cluster.connect(0, 1)
    cluster.send(worker, failed="no memory")
    why = f"worker {worker} (host{worker}:1) failed"
    if ends:
        assert cluster.outcome == f"{why}: no memory"
    else:
        assert cluster.outcome is None
        assert cluster.lines == [f"{why} before it joined: no memory."]


def test_a_worker_that_leaves_is_not_waited_for():
    cluster, view = started_workers(2, elastic=True, coordinator_moves=True)
    cluster.send(1, leaves=True)
    cluster.lose(1)
    cluster.report_live(0, steps=3, view=view)
    assert members(cluster.taken()[0][-1]) == (0,)
    assert "worker 1 (host1:1) left." in cluster.lines
