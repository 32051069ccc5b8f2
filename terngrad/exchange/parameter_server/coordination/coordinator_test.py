"""Views: which workers train together, from which state, and what ends a training."""

import re
import time

import pytest

from terngrad.exchange.parameter_server import groups
from terngrad.exchange.parameter_server.coordination.coordinator import Coordinator
from terngrad.exchange.parameter_server.coordination.situation import Rules
from terngrad.service.messages import Report

SECS = 10.0


class Cluster:
    """A coordinator whose workers only note their orders."""

    def __init__(self, workers=3, needed=None, elastic=False, servers=1, wall_clock=time.time):
        self.now = 0.0
        self.lines = []
        self.orders = {worker: [] for worker in range(workers)}
        self.dropped = []
        self.coordinator = Coordinator(
            [f"host{i}:1" for i in range(workers)],
            Rules(needed or workers, elastic, SECS),
            lambda worker, order: self.orders[worker].append(order),
            self.dropped.append,
            self.lines.append,
            lambda: self.now,
            wall_clock,
            servers,
        )

    def begin(self, *workers, steps=0):
        for worker in workers:
            self.coordinator.connect(worker)
        for worker in workers:
            self.stand(worker, steps if worker == 0 else 0)
        return self.taken()

    def stand(self, worker, steps=0, *, is_live=False, view=None):
        report = Report()
        report.standing.steps, report.standing.is_live = steps, is_live
        if view:
            report.standing.view, report.standing.members = view.number, view.members
        self.coordinator.hear(worker, report)

    def tell(self, worker, **what):
        self.coordinator.hear(worker, Report(**what))

    def give(self, worker, name, content, round_=0):
        report = Report()
        report.value.name, report.value.content, report.value.round = name, content, round_
        self.coordinator.hear(worker, report)

    def progress(self, worker, batches, begun=0):
        """Reports the number of batches taken; None = the worker makes no steps now."""
        report = Report()
        report.progress.is_stepping, report.progress.batches = batches is not None, batches or 0
        report.progress.begun = begun
        self.coordinator.hear(worker, report)

    def begin_operation(self, worker, begun, last="a step"):
        """Reports how many operations with the others the worker has begun, and the last one."""
        report = Report()
        report.progress.begun, report.progress.operation, report.progress.alike = begun, last, 1
        self.coordinator.hear(worker, report)

    def taken(self):
        """Returns the orders since the last call: names, or the views themselves."""
        found = {}
        for worker, orders in self.orders.items():
            if orders:
                kinds = [order.WhichOneof("what") for order in orders]
                found[worker] = [
                    order.view if kind == "view" else kind
                    for kind, order in zip(kinds, orders, strict=True)
                ]
                orders.clear()
        return found

    def pass_secs(self, seconds):
        self.now += seconds
        self.coordinator.watch()

    @property
    def outcome(self):
        return self.coordinator.outcome


def members(view):
    return groups.unpack(view.members)


def receivers(view):
    return groups.unpack(view.receivers)


def test_training_begins_with_all_workers_from_the_chiefs_state():
    cluster = Cluster()
    for worker in (2, 0, 1):
        assert cluster.taken() == {}
        cluster.coordinator.connect(worker)
        cluster.stand(worker, 40 if worker == 0 else 0)
    views = cluster.taken()
    assert sorted(views) == [0, 1, 2]
    assert all(view == views[0] for view in views.values())
    (view,) = views[0]
    assert (members(view), view.steps, view.donor, view.needed) == ((0, 1, 2), 40, 0, 3)
    assert receivers(view) == (1, 2)
    assert view.is_first


def test_a_worker_that_does_not_join_ends_the_training_and_is_named():
    cluster = Cluster()
    assert cluster.begin(0, 1) == {}
    cluster.pass_secs(SECS - 1)
    assert cluster.outcome is None
    cluster.pass_secs(2)
    assert cluster.outcome == "worker 2 (host2:1) did not join within 10 s"
    assert cluster.taken() == {0: ["end"], 1: ["end"]}


def test_a_lost_chief_that_comes_back_gets_the_state_of_a_live_worker():
    cluster = Cluster()
    (first,) = cluster.begin(0, 1, 2)[0]
    cluster.coordinator.disconnect(0, "died")
    cluster.pass_secs(SECS - 1)
    assert cluster.taken() == {}  # the step waits
    cluster.coordinator.connect(0)
    cluster.stand(0, 5)  # from its checkpoint
    assert cluster.taken() == {1: ["freeze"], 2: ["freeze"]}
    cluster.stand(1, 7, is_live=True, view=first)
    cluster.stand(2, 8, is_live=True, view=first)
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
    cluster = Cluster()
    cluster.begin(0, 1, 2)
    cluster.coordinator.disconnect(1, "died: its stream ended")
    cluster.pass_secs(SECS + 1)
    died = "worker 1 (host1:1) died: its stream ended"
    assert cluster.outcome == f"{died}, and did not come back within 10 s"
    assert cluster.taken() == {0: ["end"], 2: ["end"]}


def test_elastic_training_continues_without_a_lost_worker_and_lets_it_join_again():
    cluster = Cluster(elastic=True)
    (first,) = cluster.begin(0, 1, 2)[0]
    cluster.coordinator.disconnect(0, "died")
    cluster.pass_secs(SECS + 1)
    assert cluster.taken() == {1: ["freeze"], 2: ["freeze"]}
    for worker in (1, 2):
        cluster.stand(worker, 3, is_live=True, view=first)
    (second,) = cluster.taken()[1]
    assert (members(second), second.needed, receivers(second)) == ((1, 2), 2, ())
    cluster.coordinator.connect(0)
    cluster.stand(0, 0)
    for worker in (1, 2):
        cluster.stand(worker, 9, is_live=True, view=second)
    (third,) = cluster.taken()[0]
    assert (members(third), third.steps, receivers(third)) == ((0, 1, 2), 9, (0,))


def test_a_worker_that_missed_the_last_view_gets_the_state_of_that_view():
    cluster = Cluster(needed=2)
    (first,) = cluster.begin(0, 1, 2)[0]
    cluster.coordinator.disconnect(2, "cannot be reached")
    cluster.taken()
    for worker in (0, 1):
        cluster.stand(worker, 5, is_live=True, view=first)
    (second,) = cluster.taken()[0]
    assert members(second) == (0, 1)
    cluster.coordinator.connect(2)
    cluster.stand(2, 6, is_live=True, view=first)  # only this worker had the result of step 5
    for worker in (0, 1):
        cluster.stand(worker, 6, is_live=True, view=second)
    third = cluster.taken()[2][-1]
    assert (third.steps, third.donor, receivers(third)) == (6, 0, (2,))


def test_a_repeated_standing_makes_no_second_view():
    cluster = Cluster(workers=2)
    (view,) = cluster.begin(0, 1)[0]
    cluster.stand(1)
    assert cluster.taken() == {}
    cluster.stand(1, 3, is_live=True, view=view)
    assert cluster.taken() == {0: ["freeze"]}


@pytest.mark.parametrize("what", [{"view": 1 << 63}, {"steps": 1 << 63}, {"members": b"\xff"}])
def test_law_10_impossible_standings_are_refused(what):
    cluster = Cluster(workers=2)
    cluster.coordinator.connect(0)
    with pytest.raises(ValueError, match=r"allowed (is up to|are 0 to 1)"):
        cluster.tell(0, standing=what)
    cluster.coordinator.watch()
    assert cluster.outcome is None


def test_a_worker_that_connects_after_the_end_learns_the_reason():
    cluster = Cluster(workers=2)
    cluster.begin(0, 1)
    cluster.tell(0, failed="diverged")
    cluster.taken()
    cluster.coordinator.connect(1)
    assert cluster.taken() == {1: ["end"]}


def test_the_last_worker_that_reconnects_learns_that_the_training_is_done():
    cluster = Cluster(workers=2)
    (view,) = cluster.begin(0, 1)[0]
    cluster.tell(0, bye=True)
    cluster.coordinator.disconnect(1, "blinked")
    cluster.coordinator.connect(1)
    cluster.taken()
    cluster.stand(1, 9, is_live=True, view=view)
    assert cluster.taken() == {1: ["finished"]}
    cluster.tell(1, bye=True)
    assert cluster.outcome == ""


def test_elastic_training_does_not_begin_without_a_state():
    cluster = Cluster(workers=2, elastic=True)
    cluster.begin(1)
    cluster.pass_secs(SECS + 1)
    assert "worker 0 (host0:1) did not join within 10 s, and no other worker" in cluster.outcome


def test_backup_workers_continue_at_once_when_one_is_lost():
    cluster = Cluster(needed=2)
    (first,) = cluster.begin(0, 1, 2)[0]
    assert first.needed == 2
    cluster.coordinator.disconnect(0, "died")
    assert cluster.taken() == {1: ["freeze"], 2: ["freeze"]}
    for worker in (1, 2):
        cluster.stand(worker, 6, is_live=True, view=first)
    (view,) = cluster.taken()[2]
    assert (members(view), view.needed, view.steps) == ((1, 2), 2, 6)
    cluster.coordinator.disconnect(1, "died")  # now there are too few
    cluster.pass_secs(SECS + 1)
    assert "worker 1 (host1:1) died, and did not come back within 10 s" in cluster.outcome


def test_backup_workers_begin_without_a_worker_that_does_not_join():
    cluster = Cluster(needed=2)
    assert cluster.begin(0, 2) == {}
    cluster.pass_secs(SECS + 1)
    (view,) = cluster.taken()[2]
    assert members(view) == (0, 2)


def test_the_first_backup_workers_make_the_step():
    cluster = Cluster(needed=1, workers=2)
    cluster.begin(0, 1)
    cluster.tell(1, ready=0)
    for worker in (0, 1):
        (order,) = cluster.orders[worker]
        assert (order.go.step, groups.unpack(order.go.contributors)) == (0, (1,))
    cluster.tell(0, ready=0)
    assert cluster.coordinator.dropped == {0: 1}


def test_after_a_restart_the_views_of_live_workers_count_and_lost_workers_do_not():
    before = Cluster(elastic=True)
    (view,) = before.begin(0, 1, 2)[0]
    view.members, view.number = groups.pack((0, 2)), view.number + (1 << 30)
    cluster = Cluster(elastic=True)
    for worker in (0, 2):
        cluster.coordinator.connect(worker)
        cluster.stand(worker, 12, is_live=True, view=view)
    (found,) = cluster.taken()[0]
    assert (members(found), found.steps, receivers(found)) == ((0, 2), 12, ())
    assert found.number > view.number


@pytest.mark.parametrize("jump_secs", [-1e9, -60.0, 60.0, 1e9])
def test_a_clock_that_jumped_before_a_restart_ends_no_training_and_repeats_no_view(jump_secs):
    now = time.time()
    (view,) = Cluster(workers=2, wall_clock=lambda: now).begin(0, 1)[0]
    cluster = Cluster(workers=2, wall_clock=lambda: now + jump_secs)
    for worker in (0, 1):
        cluster.coordinator.connect(worker)
        cluster.stand(worker, 12, is_live=True, view=view)
    (found,) = cluster.taken()[0]
    assert (found.steps, receivers(found)) == (12, ())
    assert found.number > view.number
    cluster.stand(0, 12, is_live=True, view=found)  # its number counts from now on
    assert cluster.taken() == {1: ["freeze"]}


def test_values_are_sent_when_all_workers_have_given_theirs_and_later_at_once():
    cluster = Cluster()
    for worker in range(3):
        cluster.coordinator.connect(worker)
    cluster.give(0, "facts", b"a")
    cluster.give(1, "facts", b"b")
    assert cluster.taken() == {}
    cluster.give(2, "facts", b"c")
    assert [o.values.contents for o in cluster.orders[1]] == [[b"a", b"b", b"c"]]
    for worker in range(3):
        cluster.stand(worker)
    cluster.taken()
    cluster.coordinator.disconnect(1, "died")
    cluster.coordinator.connect(1)
    cluster.give(1, "facts", b"other")
    assert [o.values.contents for o in cluster.orders[1]] == [[b"a", b"other", b"c"]]
    assert sorted(cluster.taken()) == [1]


def test_a_worker_that_joins_after_values_were_sent_gets_the_same_values():
    cluster = Cluster(workers=3, elastic=True)
    cluster.begin(0, 1)
    for worker in (0, 1):
        cluster.give(worker, "examples", b"100")
    cluster.pass_secs(SECS + 1)
    assert list(cluster.orders[1][0].values.contents) == [b"100", b"100"]
    cluster.coordinator.connect(2)
    cluster.give(2, "examples", b"100")
    (order,) = cluster.orders[2]
    assert list(order.values.workers) == [0, 1]


def test_values_of_too_many_bytes_or_names_are_refused():
    cluster = Cluster(workers=1)
    cluster.coordinator.connect(0)
    with pytest.raises(ValueError, match="value long: it has 65537 bytes; allowed are 65536"):
        cluster.give(0, "long", bytes(65537))
    for i in range(64):
        cluster.give(0, f"{i}", b"")
    with pytest.raises(ValueError, match="value more: there are too many names; allowed are 64"):
        cluster.give(0, "more", b"")


def test_old_rounds_and_rounds_of_impossible_views_are_not_answered():
    cluster = Cluster(workers=1)
    (view,) = cluster.begin(0)[0]
    for round_, answers in ((5, {0: ["values"]}), (3, {}), (4, {0: ["values"]})):
        cluster.give(0, "facts", b"", round_)
        assert cluster.taken() == answers
    cluster.give(0, "facts", b"", view.number + 1)
    assert cluster.taken() == {}
    cluster.give(0, "facts", b"", view.number)
    assert cluster.taken() == {0: ["values"]}


def test_values_of_processes_that_are_all_gone_are_not_sent_to_later_ones():
    cluster = Cluster(workers=2)
    for worker in (0, 1):
        cluster.coordinator.connect(worker)
        cluster.give(worker, "facts", b"before")
    for worker in (0, 1):
        cluster.coordinator.disconnect(worker, "died")
    cluster.taken()
    for worker in (0, 1):
        cluster.coordinator.connect(worker)
    cluster.give(0, "facts", b"after")
    assert cluster.taken() == {}
    cluster.give(1, "facts", b"after")
    assert list(cluster.orders[0][-1].values.contents) == [b"after", b"after"]


def test_values_wait_for_a_member_that_may_come_back():
    cluster = Cluster(workers=2)
    cluster.begin(0, 1)
    cluster.taken()
    cluster.coordinator.disconnect(0, "died")
    cluster.give(1, "at the end", b"1")
    assert cluster.taken() == {}
    cluster.coordinator.connect(0)
    cluster.give(0, "at the end", b"1")
    assert cluster.taken() == {0: ["values"], 1: ["values"]}


def test_values_of_a_worker_that_fails_to_join_are_forgotten():
    cluster = Cluster(workers=2)
    cluster.begin(0, 1)
    cluster.coordinator.disconnect(1, "died")
    cluster.give(0, "facts", b"right")
    cluster.coordinator.connect(1)
    cluster.give(1, "facts", b"wrong")
    cluster.tell(1, failed="it does not fit")
    cluster.coordinator.disconnect(1, "ended")
    cluster.orders[1].clear()
    cluster.coordinator.connect(1)
    cluster.give(1, "facts", b"right")
    (order,) = cluster.orders[1]
    assert list(order.values.contents) == [b"right", b"right"]


def test_elastic_training_ends_if_all_workers_are_lost_before_it_began():
    cluster = Cluster(workers=2, elastic=True)
    cluster.coordinator.connect(0)
    cluster.coordinator.disconnect(0, "died")
    cluster.pass_secs(SECS + 1)
    assert "worker 0 (host0:1) died" in cluster.outcome


def test_a_worker_that_only_connects_and_leaves_is_not_logged():
    cluster = Cluster(workers=2)
    for _ in range(3):
        cluster.coordinator.connect(1)
        cluster.coordinator.disconnect(1, "died")
    assert cluster.lines == []


def test_a_member_that_reports_no_state_gets_one():
    cluster = Cluster(workers=3, needed=2)
    (first,) = cluster.begin(0, 1, 2)[0]
    cluster.stand(2, 6, is_live=False, view=first)
    cluster.stand(0, 6, is_live=True, view=first)
    cluster.stand(1, 6, is_live=True, view=first)
    (second,) = cluster.taken()[0][-1:]
    assert (second.donor, receivers(second)) == (0, (2,))


def test_a_member_that_fails_ends_the_training_but_a_joining_worker_does_not():
    cluster = Cluster(elastic=True)
    cluster.begin(0, 1, 2)
    cluster.coordinator.disconnect(1, "died")
    cluster.coordinator.connect(1)
    cluster.tell(1, failed="batch_size is 8")
    assert cluster.outcome is None
    cluster.tell(2, failed="a bad record")
    assert cluster.outcome == "worker 2 (host2:1) failed: a bad record"


def test_nobody_is_blamed_for_an_error_that_all_have():
    cluster = Cluster()
    cluster.begin(0, 1, 2)
    cluster.tell(2, failed="step 7: entropy_loss is nan", shared=True)
    assert cluster.outcome == "step 7: entropy_loss is nan"


def test_a_worker_that_ends_all_without_a_failure_of_its_own_may_save():
    cluster = Cluster()
    cluster.begin(0, 1, 2)
    cluster.coordinator.disconnect(2, "died")
    cluster.tell(0, failed="worker 0 was asked to end", shared=True)
    assert cluster.outcome == "worker 0 was asked to end"
    assert end_of(cluster, 1).saver == 0


def test_a_training_is_over_when_all_connected_workers_are_done():
    cluster = Cluster(elastic=True)
    cluster.begin(0, 1, 2)
    cluster.coordinator.disconnect(1, "died")
    cluster.tell(0, bye=True)
    assert cluster.outcome is None
    cluster.tell(2, bye=True)
    assert cluster.outcome == ""


def test_a_worker_that_joins_when_the_others_are_done_is_dismissed():
    cluster = Cluster(elastic=True)
    cluster.begin(0, 1, 2)
    cluster.taken()
    cluster.coordinator.disconnect(1, "died")
    cluster.tell(0, bye=True)
    cluster.coordinator.connect(1)
    cluster.tell(2, bye=True)
    cluster.stand(1)
    assert cluster.taken() == {1: ["finished"]}


def test_a_worker_that_hangs_is_named_or_abandoned():
    for elastic in (False, True):
        cluster = Cluster(workers=2, elastic=elastic)
        cluster.begin(0, 1)
        cluster.taken()
        for seconds in range(int(SECS) + 3):
            for worker, batches in ((0, 5), (1, 4)):
                report = Report()
                report.progress.is_stepping, report.progress.batches = True, batches
                cluster.coordinator.hear(worker, report)
            if cluster.outcome is None:
                cluster.pass_secs(1 if seconds else 0)
        if elastic:
            assert cluster.dropped == [1]
            assert cluster.taken()[0] == ["freeze"]
            cluster.coordinator.connect(1)  # its other threads open another stream
            cluster.stand(0, 5, is_live=True)
            (view,) = cluster.taken()[0]
            assert members(view) == (0,)
            cluster.give(0, "at the end", b"")
            assert cluster.taken() == {0: ["values"]}
            cluster.stand(1, 4, is_live=True)  # it no longer hangs
            assert cluster.taken() == {0: ["freeze"]}
        else:
            assert cluster.outcome.startswith("worker 1 (host1:1): no next batch for 10 s")


def test_a_backup_worker_that_hangs_is_abandoned_and_two_end_the_training():
    for hanging in ([2], [1, 2]):
        cluster = Cluster(workers=3, needed=2)
        cluster.begin(0, 1, 2)
        cluster.taken()
        for _ in range(int(SECS) + 3):
            for worker in range(3):
                report = Report()
                report.progress.is_stepping = True
                report.progress.batches = 4 if worker in hanging else 5
                cluster.coordinator.hear(worker, report)
            if cluster.outcome is None:
                cluster.pass_secs(1)
        if len(hanging) == 1:
            assert cluster.outcome is None
            assert cluster.dropped == [2]
            assert cluster.taken()[0] == ["freeze"]
        else:
            named = "worker 1 (host1:1), worker 2 (host2:1): no next batch for 10 s"
            assert cluster.outcome.startswith(named)


@pytest.mark.parametrize("rules", [{"elastic": True}, {"needed": 1}], ids=str)
@pytest.mark.parametrize("batches", [3, None], ids=["within a step", "busy"])
def test_a_worker_that_hangs_in_a_step_is_abandoned_but_not_a_busy_one(rules, batches):
    cluster = Cluster(workers=3, **rules)
    (view,) = cluster.begin(0, 1, 2)[0]
    cluster.progress(1, batches)
    cluster.coordinator.disconnect(2, "died")
    cluster.taken()
    cluster.stand(0, 1, is_live=True, view=view)
    cluster.pass_secs(SECS + 1)
    assert cluster.outcome is None
    if batches is None:
        assert not cluster.dropped
        assert 0 not in cluster.taken()  # there is no view
    else:
        assert cluster.dropped == [1]
        assert members(cluster.taken()[0][-1]) == (0,)


def test_no_worker_is_abandoned_for_a_worker_without_a_state():
    cluster = Cluster(workers=3, elastic=True)
    cluster.begin(0, 1)
    cluster.pass_secs(SECS + 1)
    for worker in (0, 1):
        cluster.progress(worker, 3)
    cluster.coordinator.connect(2)
    cluster.stand(2)
    cluster.pass_secs(SECS + 1)
    assert (cluster.outcome, cluster.dropped) == (None, [])


@pytest.mark.parametrize("rules", [{"elastic": True}, {"needed": 1}], ids=str)
def test_a_worker_that_hangs_before_the_first_view_is_abandoned_but_not_the_chief(rules):
    for hanging in (0, 1):
        cluster = Cluster(workers=2, **rules)
        for worker in (0, 1):
            cluster.coordinator.connect(worker)
        cluster.stand(1 - hanging)
        cluster.pass_secs(10 * SECS - 1)
        assert (cluster.outcome, cluster.dropped) == (None, [])
        cluster.pass_secs(2)
        if hanging:
            assert (cluster.outcome, cluster.dropped) == (None, [1])
            assert members(cluster.taken()[0][-1]) == (0,)
        else:  # it alone has the state
            assert cluster.outcome.startswith("worker 0 (host0:1) hangs")


def stand_still(cluster, batches, begun=(0, 0)):
    """Both workers of a cluster are in the same step for ten time-outs."""
    for operations in begun:
        for worker in (0, 1):
            cluster.progress(worker, batches, operations)
        cluster.pass_secs(5 * SECS + 1)


def test_workers_that_begin_operations_within_a_call_of_many_batches_do_not_stand_still():
    cluster = Cluster(workers=2)
    cluster.begin(0, 1)
    stand_still(cluster, 5, begun=(7, 8))
    assert (cluster.taken(), cluster.outcome) == ({}, None)
    cluster.pass_secs(5 * SECS)
    assert cluster.taken() == {0: ["freeze"], 1: ["freeze"]}


@pytest.mark.parametrize("rules", [{"elastic": True}, {"needed": 1}, {}], ids=str)
def test_a_worker_that_hangs_amid_the_step_of_all_is_abandoned_or_named(rules):
    cluster = Cluster(workers=2, **rules)
    (view,) = cluster.begin(0, 1)[0]
    stand_still(cluster, 5)
    assert (cluster.taken(), cluster.outcome) == ({0: ["freeze"], 1: ["freeze"]}, None)
    cluster.stand(0, 4, is_live=True, view=view)
    cluster.progress(0, None)
    cluster.pass_secs(SECS - 1)
    assert (cluster.taken(), cluster.outcome) == ({}, None)
    cluster.pass_secs(2)
    if rules:
        assert (cluster.outcome, cluster.dropped) == (None, [1])
        assert members(cluster.taken()[0][-1]) == (0,)
    else:
        assert cluster.outcome == "worker 1 (host1:1) hangs: it has not reported its step for 11 s"


def test_a_worker_whose_stream_breaks_is_awaited_before_another_that_hangs_ends_the_training():
    cluster = Cluster(workers=2, needed=1)
    (view,) = cluster.begin(0, 1)[0]
    stand_still(cluster, 5)
    cluster.stand(0, 4, is_live=True, view=view)
    cluster.progress(0, None)
    cluster.pass_secs(SECS - 1)
    cluster.coordinator.disconnect(0, "died")
    cluster.pass_secs(2)
    assert cluster.outcome is None
    cluster.coordinator.connect(0)
    cluster.pass_secs(0)
    assert cluster.outcome is None
    cluster.stand(0, 4, is_live=True, view=view)
    cluster.pass_secs(0)
    assert members(cluster.taken()[0][-1]) == (0,)


def test_a_step_that_all_try_in_vain_a_second_time_ends_the_training_and_another_step_does_not():
    cluster = Cluster(workers=2)
    (view,) = cluster.begin(0, 1)[0]
    for steps in (4, 7):
        stand_still(cluster, steps + 1)
        assert cluster.taken() == {0: ["freeze"], 1: ["freeze"]}
        for worker in (0, 1):
            cluster.stand(worker, steps, is_live=True, view=view)
        (view,) = cluster.taken()[0]
        assert members(view) == (0, 1)
    stand_still(cluster, 8)
    assert cluster.outcome == "no worker made a step for 100 s"


def test_a_backup_worker_that_stands_still_is_noticed_although_the_others_are_done():
    cluster = Cluster(workers=2, needed=1)
    cluster.begin(0, 1)
    cluster.progress(0, None)
    cluster.tell(0, bye=True)
    stand_still(cluster, 5)
    assert cluster.taken()[1] == ["freeze"]


def test_where_the_only_worker_with_the_state_hangs_for_very_long_the_chief_goes_on_anew():
    cluster = Cluster(workers=2, elastic=True)
    cluster.begin(0, 1)
    cluster.progress(1, 3)
    cluster.pass_secs(5 * SECS)
    cluster.coordinator.disconnect(0, "died")
    cluster.coordinator.connect(0)
    cluster.stand(0)
    cluster.pass_secs(5 * SECS - 1)
    assert (cluster.outcome, cluster.dropped) == (None, [])
    cluster.pass_secs(2)
    assert (cluster.outcome, cluster.dropped) == (None, [1])
    assert members(cluster.taken()[0][-1]) == (0,)


def end_of(cluster, worker):
    """Returns the order that ends a worker."""
    (order,) = [order for order in cluster.orders[worker] if order.WhichOneof("what") == "end"]
    return order


@pytest.mark.parametrize(("lost", "saver"), [(2, 0), (0, 1)])
def test_the_first_remaining_member_saves_at_the_end(lost, saver):
    cluster = Cluster(workers=3)
    cluster.begin(0, 1, 2)
    for worker in range(3):
        cluster.progress(worker, 1)
    cluster.coordinator.disconnect(lost, "died")
    cluster.pass_secs(SECS + 1)
    assert end_of(cluster, 1).saver == saver
    cluster.taken()
    cluster.coordinator.connect(1)  # gets the order again
    assert end_of(cluster, 1).saver == saver


def test_a_worker_that_fails_or_hangs_does_not_save():
    cluster = Cluster(workers=2)
    cluster.begin(0, 1)
    cluster.progress(1, 1)
    cluster.tell(0, failed="a bad record")
    assert end_of(cluster, 1).saver == 1
    cluster = Cluster(workers=2)
    cluster.begin(0, 1)
    for _ in range(2):
        for worker, batches in ((0, 4), (1, 5)):
            cluster.progress(worker, batches)
        cluster.pass_secs(SECS + 1)
    assert end_of(cluster, 1).saver == 1


def test_a_worker_that_has_only_started_does_not_save():
    cluster = Cluster(workers=3)
    (view,) = cluster.begin(0, 1, 2)[0]
    for worker in (0, 2):
        cluster.coordinator.disconnect(worker, "died")
    cluster.coordinator.connect(0)
    cluster.stand(0)
    cluster.stand(1, 5, is_live=True, view=view)
    cluster.pass_secs(SECS + 1)
    assert end_of(cluster, 1).saver == 1


def test_a_worker_that_waits_for_the_state_does_not_save():
    cluster = Cluster(workers=3)
    (view,) = cluster.begin(0, 1, 2)[0]
    cluster.coordinator.disconnect(0, "died")
    cluster.coordinator.connect(0)
    cluster.stand(0)
    for worker in (1, 2):
        cluster.stand(worker, 100, is_live=True, view=view)
    assert receivers(cluster.taken()[0][-1]) == (0,)
    cluster.coordinator.disconnect(1, "died")  # the donor
    cluster.pass_secs(SECS + 1)
    assert end_of(cluster, 0).saver == end_of(cluster, 2).saver == 2


def test_a_receiver_in_its_first_step_saves_if_no_other_worker_can():
    cluster = Cluster(workers=2)
    (view,) = cluster.begin(0, 1)[0]
    cluster.coordinator.disconnect(1, "died")
    cluster.coordinator.connect(1)
    cluster.stand(1)
    cluster.stand(0, 5000, is_live=True, view=view)
    assert receivers(cluster.taken()[1][-1]) == (1,)
    cluster.coordinator.disconnect(0, "died")
    cluster.pass_secs(SECS + 1)
    assert end_of(cluster, 1).saver == 1


def one_lost_and_one_about_to_join():
    """Returns a cluster with a view of 0 and 1: 1 is lost, 0 has a standing, 2 builds its net."""
    cluster = Cluster(workers=3, needed=2)
    for worker in (0, 1):
        cluster.coordinator.connect(worker)
        cluster.stand(worker)
    cluster.pass_secs(SECS + 1)
    (view,) = cluster.taken()[0]
    assert members(view) == (0, 1)
    cluster.coordinator.connect(2)
    cluster.coordinator.disconnect(1, "died")
    cluster.pass_secs(SECS + 1)
    cluster.stand(0, 30, is_live=True, view=view)
    return cluster


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
    cluster = Cluster(workers=3, elastic=True)
    for worker in range(3):
        cluster.coordinator.connect(worker)
    cluster.coordinator.disconnect(0, "died")
    cluster.stand(1)
    cluster.pass_secs(10 * SECS + 1)
    assert cluster.outcome == (
        "worker 0 (host0:1) died, and did not come back within 10 s; "
        "worker 2 (host2:1) hangs: it has not reported its step for 101 s"
    )


def test_a_worker_that_hangs_is_abandoned_although_another_joins_and_leaves():
    cluster = Cluster(workers=4, needed=2)
    (view,) = cluster.begin(0, 1, 2, 3)[0]
    cluster.progress(1, 5)
    cluster.coordinator.disconnect(3, "died")
    for worker in (0, 2):
        cluster.stand(worker, 9, is_live=True, view=view)
    for _ in range(12):  # while 1 hangs in a step
        cluster.coordinator.connect(3)
        cluster.stand(3)
        cluster.coordinator.disconnect(3, "died")
        cluster.progress(1, 5)
        cluster.pass_secs(SECS / 4)
    view = next(order for order in cluster.taken()[0] if order != "freeze")
    assert members(view) == (0, 2)


def test_too_few_members_wait_for_a_worker_that_is_about_to_join():
    cluster = one_lost_and_one_about_to_join()
    assert cluster.outcome is None
    cluster.stand(2)
    view = cluster.taken()[0][-1]
    assert (members(view), receivers(view)) == ((0, 2), (2,))


def test_a_ps_that_knows_no_steps_lets_the_workers_decide_who_saves():
    cluster = Cluster(workers=2)
    cluster.coordinator.connect(1)
    cluster.pass_secs(SECS + 1)
    assert not end_of(cluster, 1).HasField("saver")


def test_a_worker_that_is_busy_for_too_long_is_abandoned_if_the_others_can_continue():
    cluster = Cluster(workers=2, elastic=True)
    (view,) = cluster.begin(0, 1)[0]
    cluster.progress(1, None)
    cluster.stand(0, 1, is_live=True, view=view)
    cluster.taken()
    cluster.pass_secs(10 * SECS + 1)
    assert (cluster.outcome, cluster.dropped) == (None, [1])
    assert members(cluster.taken()[0][-1]) == (0,)


def test_a_ps_ends_with_the_other_workers_although_one_hangs():
    cluster = Cluster(workers=2, elastic=True)
    cluster.begin(0, 1)
    for _ in range(2):
        for worker, batches in ((0, 5), (1, 4)):
            cluster.progress(worker, batches)
        cluster.pass_secs(SECS + 1)
    assert cluster.dropped == [1]
    cluster.coordinator.connect(1)
    cluster.taken()
    cluster.tell(0, bye=True)
    assert cluster.outcome == ""
    assert cluster.taken() == {1: ["finished"]}


def test_a_finished_training_whose_last_worker_hangs_on_a_new_stream_is_finished():
    cluster = Cluster(workers=2, needed=1)
    cluster.begin(0, 1)
    cluster.coordinator.disconnect(1, "died")
    cluster.coordinator.connect(1)
    cluster.tell(0, bye=True)
    cluster.pass_secs(10 * SECS + 1)
    assert cluster.outcome == ""


def test_a_finished_training_whose_last_worker_dies_is_finished():
    cluster = Cluster(workers=2)
    cluster.begin(0, 1)
    cluster.tell(0, bye=True)
    cluster.coordinator.disconnect(1, "died")
    assert cluster.outcome is None
    cluster.pass_secs(SECS + 1)
    assert cluster.outcome == ""


def test_a_member_that_never_reports_its_standing_is_named():
    cluster = Cluster(workers=2)
    (view,) = cluster.begin(0, 1)[0]
    cluster.stand(0, 1, is_live=True, view=view)
    cluster.pass_secs(10 * SECS + 1)
    assert cluster.outcome == "worker 1 (host1:1) hangs: it has not reported its step for 101 s"


def test_an_elastic_training_whose_last_worker_dies_after_another_is_done_is_finished():
    cluster = Cluster(workers=2, elastic=True)
    cluster.begin(0, 1)
    cluster.tell(0, bye=True)
    cluster.coordinator.disconnect(1, "died")
    assert cluster.outcome is None
    cluster.pass_secs(SECS + 1)
    assert cluster.outcome == ""


def test_a_worker_that_finishes_while_it_waits_for_a_view_is_in_no_view():
    cluster = Cluster(workers=3, needed=1)
    (view,) = cluster.begin(0, 1, 2)[0]
    cluster.stand(0, 5, is_live=True, view=view)
    cluster.tell(0, bye=True)
    for worker in (1, 2):
        cluster.stand(worker, 5, is_live=True, view=view)
    assert members(cluster.taken()[1][-1]) == (1, 2)


def test_a_finished_worker_that_starts_again_joins():
    cluster = Cluster(workers=2, elastic=True)
    (view,) = cluster.begin(0, 1)[0]
    cluster.tell(0, bye=True)
    cluster.coordinator.connect(0)
    cluster.stand(0)
    cluster.stand(1, 5, is_live=True, view=view)
    assert receivers(cluster.taken()[0][-1]) == (0,)


def test_backup_workers_wait_for_a_chief_that_was_lost_before_it_gave_its_state():
    cluster = Cluster(workers=3, needed=2)
    (view,) = cluster.begin(0, 1, 2)[0]
    cluster.coordinator.disconnect(0, "died")
    for worker in (1, 2):
        cluster.stand(worker, view=view)
    assert cluster.outcome is None
    cluster.coordinator.connect(0)
    cluster.stand(0, is_live=True, view=view)
    after = cluster.taken()[1][-1]
    assert (members(after), after.donor, receivers(after)) == ((0, 1, 2), 0, (1, 2))


def test_a_worker_that_has_the_state_is_waited_for_where_no_member_has_it():
    cluster = Cluster(2, elastic=True)
    first = cluster.begin(0, 1)[0][0]
    cluster.coordinator.disconnect(0, "died")
    cluster.pass_secs(SECS)
    cluster.stand(1, 2, is_live=True, view=first)  # goes on alone
    cluster.coordinator.disconnect(1, "died")
    cluster.coordinator.connect(1)
    cluster.coordinator.connect(0)
    cluster.taken()
    cluster.stand(1)
    assert cluster.coordinator.outcome is None
    cluster.stand(0, 1, is_live=True, view=first)
    view = cluster.taken()[1][-1]
    assert (view.donor, view.steps, groups.unpack(view.receivers)) == (0, 1, (1,))


class Backup(Cluster):
    """Workers 0 and 1 make steps; worker 2 is a backup."""

    def __init__(self):
        super().__init__(needed=2)
        (self.view,) = self.begin(0, 1, 2)[0]
        self.step = 0
        self.make_step()

    def make_step(self, *contributors):
        """The first two workers, or others, make a step; returns whether they could."""
        for worker in contributors or (0, 1):
            self.tell(worker, ready=self.step)
            self.progress(worker, self.step)
        kinds = [found for found in self.taken().values() if "go" in found]
        self.step += bool(kinds)
        return bool(kinds)

    def join(self, worker=2):
        """A worker enters from a checkpoint, and the others report; returns the view, if any."""
        self.coordinator.connect(worker)
        self.stand(worker)
        return self.form()

    def form(self, *others):
        """Who was asked reports its standing, and so do others; returns the view, if any."""
        asked = {worker for worker, found in self.taken().items() if "freeze" in found}
        for worker in sorted(asked & {0, 1} | {*others}):
            self.stand(worker, self.step, is_live=True, view=self.view)
        views = self.taken().get(0)
        self.view = views[0] if views else self.view
        return views[0] if views else None

    def leave(self, worker=2):
        self.coordinator.disconnect(worker, "died")


def entered(cluster=None):
    """A cluster whose worker 2 has died after the first step, and has entered again."""
    cluster = cluster or Backup()
    cluster.leave()
    cluster.form()
    assert members(cluster.join()) == (0, 1, 2)
    return cluster


def test_values_are_sent_without_a_backup_worker_that_entered_and_says_nothing():
    cluster = entered()
    for worker in (0, 1):
        assert cluster.taken() == {}
        cluster.give(worker, "parameters", b"equal", cluster.view.number)
    assert cluster.taken() == {0: ["values"], 1: ["values"]}
    assert cluster.make_step()
    cluster.give(2, "parameters", b"late", cluster.view.number)
    (order,) = cluster.orders[2]
    assert list(order.values.workers) == [0, 1]


def test_a_backup_worker_that_leaves_before_its_first_step_interrupts_nobody():
    cluster = entered()
    cluster.give(0, "parameters", b"equal", cluster.view.number)
    cluster.leave()
    cluster.give(1, "parameters", b"equal", cluster.view.number)
    assert cluster.taken() == {0: ["values"], 1: ["values"]}
    assert cluster.make_step() and cluster.make_step()
    cluster.pass_secs(SECS + 1)  # it does not come back in time
    assert members(cluster.form()) == (0, 1)


@pytest.mark.parametrize("says", [{"ready": 1}, {"insists": True}])
def test_a_backup_worker_that_a_step_may_wait_for_is_missed_when_it_leaves(says):
    cluster = entered()
    cluster.tell(2, **says)
    cluster.leave()
    assert cluster.taken() == {0: ["freeze"], 1: ["freeze"]}


def test_a_view_does_not_wait_long_for_a_backup_worker_that_has_made_no_step():
    cluster = entered(Backup())
    cluster.coordinator.disconnect(1, "died")
    cluster.coordinator.connect(1)
    assert cluster.form(1) is None  # worker 2 has not reported its standing
    cluster.pass_secs(4)
    assert cluster.taken() == {} and cluster.dropped == []
    cluster.pass_secs(2)
    (view,) = cluster.taken()[0]
    assert (members(view), cluster.dropped) == ((0, 1), [2])
    assert (
        "worker 2 (host2:1): made no step, and does not report its step for 6 s." in cluster.lines
    )


def test_where_all_are_needed_a_worker_that_has_made_no_step_is_waited_for():
    cluster = Cluster()
    (view,) = cluster.begin(0, 1, 2)[0]
    cluster.coordinator.disconnect(2, "died")
    cluster.coordinator.connect(2)
    cluster.stand(2)
    for worker in (0, 1):
        cluster.stand(worker, 1, is_live=True, view=view)
    (view,) = cluster.taken()[0][1:]
    for worker in (0, 1):
        cluster.give(worker, "parameters", b"equal", view.number)
    assert cluster.taken() == {}
    cluster.give(2, "parameters", b"equal", view.number)
    assert sorted(cluster.taken()) == [0, 1, 2]


def test_who_comes_and_goes_without_contributing_waits_longer_each_time_and_is_named():
    cluster = entered()
    cluster.leave()
    waits = []
    for _ in range(6):
        began = cluster.now
        while cluster.join() is None:
            cluster.leave()  # while it is held back, this does not count
            assert cluster.make_step()
            cluster.pass_secs(1)
        waits.append(cluster.now - began)
        cluster.leave()
        assert cluster.make_step()
    assert waits == [0, 5, 10, 20, 40, 80]
    assert cluster.coordinator.idle_visits == {2: 8}
    (line,) = [line for line in cluster.lines if line.endswith("it may join again in 20 s.")]
    assert line.startswith("worker 2 (host2:1) came and left 5 times without contributing")


def test_who_is_held_back_joins_when_the_time_is_over_or_when_it_is_needed():
    for is_needed in (False, True):
        cluster = entered()
        cluster.leave()
        while cluster.join() is not None:
            cluster.leave()
        assert cluster.make_step()
        if is_needed:
            cluster.leave(1)
        cluster.pass_secs(0.5 if is_needed else 6)
        view = cluster.form() or cluster.view
        assert members(view) == ((0, 2) if is_needed else (0, 1, 2))


def test_who_has_contributed_starts_anew_with_its_visits():
    cluster = entered()
    cluster.leave()
    cluster.join()
    assert cluster.coordinator.idle_visits == {2: 2}
    assert cluster.make_step(0, 2) and cluster.make_step(0, 2)
    assert cluster.coordinator.idle_visits == {}
    cluster.leave()
    assert cluster.coordinator.idle_visits == {}


def lost(*servers):
    return {"lost_ps": groups.pack(servers)}


def test_a_view_does_without_the_ps_that_any_member_has_lost_and_uses_them_when_all_are_back():
    cluster = Cluster(workers=2, elastic=True, servers=3)
    view = cluster.begin(0, 1)[0][0]
    cluster.tell(0, **lost(1))  # its step is given up already
    assert cluster.taken() == {0: ["lost_ps", "freeze"], 1: ["lost_ps", "freeze"]}
    cluster.tell(1, **lost(1, 2))
    cluster.stand(0, 5, is_live=True, view=view)
    cluster.stand(1, 5, is_live=True, view=view)
    view = cluster.taken()[0][-1]
    assert groups.unpack(view.lost_ps) == (1, 2)
    assert cluster.lines[-3:] == [
        "worker 0 (host0:1) cannot reach ps 1.",
        "worker 1 (host1:1) cannot reach ps 2.",
        "Workers 0 and 1 train from step 5 on, without ps 1 and 2.",
    ]
    assert cluster.coordinator.lost_ps == (1, 2)
    cluster.tell(0, **lost())
    assert cluster.taken() == {}  # worker 1 does not reach them yet
    cluster.tell(1, **lost(1))
    assert cluster.taken() == {0: ["freeze"], 1: ["freeze"]}
    cluster.stand(0, 9, is_live=True, view=view)
    cluster.stand(1, 9, is_live=True, view=view)
    assert groups.unpack(cluster.taken()[0][-1].lost_ps) == (1,)


def test_a_worker_that_joins_is_told_which_ps_the_others_do_without():
    cluster = Cluster(workers=2, elastic=True, servers=2)
    cluster.begin(0, 1)
    cluster.tell(0, **lost(1))
    cluster.coordinator.disconnect(1, "died")
    cluster.taken()
    cluster.coordinator.connect(1)
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
    cluster = Cluster(workers=2, elastic=elastic, servers=2)
    cluster.begin(0, 1)
    with pytest.raises(ValueError, match=text):
        cluster.tell(0, **lost(*servers))


LEFT = "worker 1 (host1:1) left after 2 operations with the others, of which worker 0 (host0:1) has"


@pytest.mark.parametrize("leaves_first", [True, False])
@pytest.mark.parametrize("has_view", [True, False])
def test_a_worker_that_left_before_an_operation_of_the_others_is_named(leaves_first, has_view):
    cluster = Cluster(2)
    if has_view:
        cluster.begin(0, 1)
    for worker in (0, 1):
        cluster.coordinator.connect(worker)
        cluster.begin_operation(worker, 2)
    leave = lambda: cluster.tell(1, bye=True)
    go_on = lambda: cluster.begin_operation(0, 3)
    cluster.taken()
    first, second = (leave, go_on) if leaves_first else (go_on, leave)
    first()
    assert cluster.outcome is None
    second()
    assert cluster.outcome == f"{LEFT} begun 3: all need equally many batches and calls"
    assert cluster.taken()[0] == ["end"]


def test_values_are_not_shared_without_those_of_a_worker_that_left():
    cluster = Cluster(2)
    for worker in (0, 1):
        cluster.coordinator.connect(worker)
    cluster.tell(1, bye=True)
    cluster.begin_operation(0, 1)
    cluster.give(0, "gather", b"a")
    assert cluster.taken() == {0: ["end"]}


def test_a_worker_that_leaves_while_the_others_compute_ends_nobody():
    cluster = Cluster(2)
    cluster.begin(0, 1)
    for worker in (0, 1):
        cluster.begin_operation(worker, 5)
    cluster.tell(1, bye=True)
    cluster.pass_secs(3 * SECS)
    assert cluster.outcome is None
    cluster.tell(0, bye=True)
    assert cluster.outcome == ""


def test_a_worker_that_leaves_before_the_others_have_connected_does_not_end_the_training():
    cluster = Cluster(2)
    cluster.coordinator.connect(1)
    cluster.tell(1, bye=True)
    assert cluster.outcome is None
    cluster.coordinator.connect(0)
    cluster.begin_operation(0, 1)
    assert cluster.outcome.startswith("worker 1 (host1:1) left after 0 operations")


def test_a_training_that_one_worker_left_ends_when_the_others_do_not_come():
    cluster = Cluster(2)
    cluster.coordinator.connect(1)
    cluster.tell(1, bye=True)
    cluster.pass_secs(SECS - 1)
    assert cluster.outcome is None
    cluster.pass_secs(2)
    assert cluster.outcome == ""


@pytest.mark.parametrize("has_view", [True, False])
def test_workers_in_different_operations_are_named_and_end(has_view):
    cluster = Cluster(2)
    if has_view:
        cluster.begin(0, 1)
    for worker in (0, 1):
        cluster.coordinator.connect(worker)
        cluster.begin_operation(worker, 4)
    cluster.begin_operation(0, 5, "all_gather")
    cluster.pass_secs(3 * SECS)  # worker 1 computes
    assert cluster.outcome is None
    cluster.taken()
    cluster.begin_operation(1, 5)
    where = "all_gather on worker 0 (host0:1) and a step on worker 1 (host1:1)"
    assert f"the workers do not run the same operations: number 5 is {where}: " in cluster.outcome
    assert cluster.taken() == {0: ["end"], 1: ["end"]}
