"""Backup workers: the first ready ones make a step; some come and go while others train."""

import pytest

from terngrad.coordination import groups
from terngrad.coordination.states import StepSelection
from terngrad.testing.coordination import (
    SECS,
    CoordinatedWorkers,
    members,
    receivers,
    started_workers,
)


def selection(workers=3, needed=2, steps=10):
    return StepSelection(range(workers), needed, steps)


def test_the_first_ready_workers_make_the_step_and_the_last_is_dropped_and_counted():
    of = selection()
    assert list(of.ready(2, 10)) == []
    assert list(of.ready(0, 10)) == [(10, (0, 2))]
    assert list(of.ready(1, 10)) == []
    assert of.dropped == {1: 1}
    assert list(of.ready(1, 11)) == []
    assert list(of.ready(2, 11)) == [(11, (1, 2))]


def test_a_late_gradient_is_counted_once_however_often_it_is_reported():
    of = selection()
    for worker, step in ((0, 10), (2, 10), (1, 10), (1, 10)):
        list(of.ready(worker, step))
    assert of.dropped == {1: 1}


def test_a_worker_that_reports_twice_that_it_is_ready_counts_once():
    of = selection()
    assert list(of.ready(1, 10)) == list(of.ready(1, 10)) == []
    assert list(of.ready(2, 10)) == [(10, (1, 2))]


@pytest.mark.parametrize("late", [0, 1, 2])
def test_no_step_is_made_without_a_worker_that_is_required(late):
    of = selection()
    of.require(late)
    others = [worker for worker in range(3) if worker != late]
    for worker in others:
        assert list(of.ready(worker, 10)) == []
    ((step, chosen),) = of.ready(late, 10)
    assert step == 10
    assert set(chosen) == {late, others[0]}
    assert list(of.ready(others[0], 11)) == []  # once is enough
    assert list(of.ready(others[1], 11)) == [(11, tuple(others))]


def test_all_workers_that_are_required_take_part_even_if_they_are_more_than_needed():
    of = selection()
    for worker in range(3):
        of.require(worker)
    assert list(of.ready(0, 10)) == list(of.ready(1, 10)) == []
    assert list(of.ready(2, 10)) == [(10, (0, 1, 2))]


def test_impossible_steps_and_workers_outside_the_view_change_nothing():
    of = StepSelection([0, 2, 3], 2, 10)
    assert list(of.ready(1, 10)) == []
    assert list(of.ready(0, 500)) == []
    assert list(of.ready(0, 10)) == []
    assert list(of.ready(3, 10)) == [(10, (0, 3))]
    assert not of.dropped


def test_backup_workers_continue_at_once_when_one_is_lost():
    cluster, first = started_workers(3, needed=2)
    assert first.needed == 2
    cluster.lose(0)
    assert cluster.taken() == {1: ["report_state"], 2: ["report_state"]}
    cluster.report_live(1, 2, steps=6, view=first)
    (view,) = cluster.taken()[2]
    assert (members(view), view.needed, view.steps) == ((1, 2), 2, 6)
    cluster.lose(1)  # now there are too few
    cluster.pass_secs(SECS + 1)
    assert "worker 1 (host1:1) died, and did not come back within 10 s" in cluster.outcome


@pytest.mark.parametrize(("makes_steps", "saver"), [(False, 1), (True, 0)])
def test_a_receiver_saves_for_the_others_only_once_it_makes_steps(makes_steps, saver):
    cluster, first = started_workers(3, needed=2)
    cluster.lose(0)
    cluster.report_live(1, 2, steps=6, view=first)
    second = cluster.taken()[1][-1]
    cluster.join(0)
    cluster.report_live(1, 2, steps=6, view=second)
    view = cluster.taken()[0][-1]
    assert (members(view), receivers(view), view.needed) == ((0, 1, 2), (0,), 2)
    cluster.send(0, has_state=view.number)  # the others go on meanwhile
    if makes_steps:
        cluster.progress(0, 1)
    cluster.send(2, failed="it has a reason")
    (order,) = cluster.orders[1]
    assert (order.WhichOneof("what"), order.saver) == ("end", saver)


def test_backup_workers_begin_without_a_worker_that_does_not_join():
    cluster = CoordinatedWorkers(needed=2)
    assert cluster.begin(0, 2) == {}
    cluster.pass_secs(SECS + 1)
    (view,) = cluster.taken()[2]
    assert members(view) == (0, 2)


def test_the_first_backup_workers_make_the_step():
    cluster = CoordinatedWorkers(needed=1, workers=2)
    cluster.begin(0, 1)
    cluster.send(1, ready=0)
    for worker in (0, 1):
        (order,) = cluster.orders[worker]
        assert (order.go.step, groups.unpack(order.go.contributors)) == (0, (1,))
    cluster.send(0, ready=0)
    assert cluster.coordinator.dropped == {0: 1}


class Backup(CoordinatedWorkers):
    """Workers 0 and 1 make steps; worker 2 is a backup."""

    def __init__(self):
        super().__init__(needed=2)
        (self.view,) = self.begin(0, 1, 2)[0]
        self.step = 0
        self.make_step()

    def make_step(self, *contributors):
        """The first two workers, or others, make a step; returns whether they could."""
        for worker in contributors or (0, 1):
            self.send(worker, ready=self.step)
            self.progress(worker, self.step)
        kinds = [found for found in self.taken().values() if "go" in found]
        self.step += bool(kinds)
        return bool(kinds)

    def join(self, worker=2):
        """A worker enters from a checkpoint, and the others report; returns the view, if any."""
        self.coordinator.connect(worker)
        self.report(worker)
        return self.form()

    def form(self, *others):
        """Who was asked reports its state, and so do others; returns the view, if any."""
        asked = {worker for worker, found in self.taken().items() if "report_state" in found}
        for worker in sorted(asked & {0, 1} | {*others}):
            self.report(worker, self.step, is_live=True, view=self.view)
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


def came_back():
    """A cluster whose worker 0 has got the state of the others again, and has made no step."""
    cluster, first = started_workers(3, needed=2)
    cluster.lose(0)
    cluster.report_live(1, 2, steps=6, view=first)
    (_, second) = cluster.taken()[1]
    cluster.join(0)
    cluster.report_live(1, 2, steps=6, view=second)
    (view,) = cluster.taken()[0]
    assert (members(view), receivers(view)) == ((0, 1, 2), (0,))
    return cluster, view


def next_view_of(cluster, view, steps=7):
    """All were asked, and report; returns their next view."""
    assert cluster.taken() == {worker: ["report_state"] for worker in range(3)}
    cluster.report_live(1, 2, steps=steps, view=view)
    cluster.report(0, 6, view, is_live=True)
    return cluster.taken()[0][-1]


def test_the_first_member_saves_if_it_has_the_state_or_all_are_needed():
    cluster, view = started_workers(3, needed=2)
    assert view.saver == 0  # the others get its state
    cluster, first = started_workers(3)
    cluster.lose(0)
    cluster.join(0)
    cluster.report_live(1, 2, steps=6, view=first)
    view = cluster.taken()[0][-1]
    assert (receivers(view), view.saver) == ((0,), 0)


def test_a_worker_that_is_back_saves_from_when_it_is_ready_for_a_step():
    cluster, view = came_back()
    assert view.saver == 1
    cluster.send(2, ready=6)
    assert cluster.taken() == {}
    cluster.send(0, ready=6)
    view = next_view_of(cluster, view)
    assert (receivers(view), view.saver) == ((0,), 0)  # though it is behind again
    cluster.send(0, ready=7)
    cluster.send(1, ready=7)
    assert cluster.taken() == {worker: ["go"] for worker in range(3)}


def test_all_wait_at_the_end_for_a_first_member_without_a_step_which_then_saves():
    cluster, view = came_back()
    for worker in (1, 2):
        cluster.give(worker, "parameters at the end", b"equal", view.number)
    assert cluster.taken() == {}
    cluster.give(0, "parameters at the end", b"equal", view.number)
    view = next_view_of(cluster, view)
    assert view.saver == 0
    cluster.pass_secs(0)
    cluster.taken()  # the values of the last view, for which nobody waits any more
    for worker in range(3):
        assert cluster.taken() == {}
        cluster.give(worker, "parameters at the end", b"equal", view.number)
    assert cluster.taken() == {worker: ["values"] for worker in range(3)}


def test_all_end_without_a_first_member_that_is_lost_before_its_first_step():
    cluster, view = came_back()
    for worker in (1, 2):
        cluster.give(worker, "parameters at the end", b"equal", view.number)
    cluster.lose(0)
    assert cluster.taken() == {}
    cluster.pass_secs(SECS + 1)
    assert cluster.taken() == {1: ["report_state"], 2: ["report_state"]}
    cluster.report_live(1, 2, steps=6, view=view)
    (view,) = cluster.taken()[1]
    assert (members(view), view.saver) == ((1, 2), 1)


def test_no_value_of_a_view_is_sent_any_more_once_all_were_asked_for_another():
    cluster, view = started_workers(3, needed=2)
    for worker in (0, 1):
        cluster.give(worker, "parameters at the end", b"equal", view.number)
    cluster.reconnect(2)  # before it has given its own
    assert cluster.taken() == {0: ["report_state"], 1: ["report_state"]}
    cluster.give(2, "parameters at the end", b"equal", view.number)
    assert cluster.taken() == {}


def test_a_backup_worker_that_leaves_before_its_first_step_interrupts_nobody():
    cluster = entered()
    cluster.give(0, "parameters", b"equal", cluster.view.number)
    cluster.leave()
    cluster.give(1, "parameters", b"equal", cluster.view.number)
    assert cluster.taken() == {0: ["values"], 1: ["values"]}
    assert cluster.make_step() and cluster.make_step()
    cluster.pass_secs(SECS + 1)  # it does not come back in time
    assert members(cluster.form()) == (0, 1)


@pytest.mark.parametrize("says", [{"ready": 1}, {"is_required_in_next_step": True}])
def test_a_backup_worker_that_a_step_may_wait_for_interrupts_the_others_by_leaving(says):
    cluster = entered()
    cluster.send(2, **says)
    cluster.leave()
    assert cluster.taken() == {0: ["report_state"], 1: ["report_state"]}


def test_a_view_does_not_wait_long_for_a_backup_worker_that_has_made_no_step():
    cluster = entered(Backup())
    cluster.reconnect(1)
    assert cluster.form(1) is None  # worker 2 has not reported its state
    cluster.pass_secs(4)
    assert cluster.taken() == {} and cluster.dropped == []
    cluster.pass_secs(2)
    (view,) = cluster.taken()[0]
    assert (members(view), cluster.dropped) == ((0, 1), [2])
    assert (
        "worker 2 (host2:1): made no step, and does not report its step for 6 s." in cluster.lines
    )


def test_where_all_are_needed_a_worker_that_has_made_no_step_is_waited_for():
    cluster, view = started_workers(3)
    cluster.lose(2)
    cluster.join(2)
    cluster.report_live(0, 1, steps=1, view=view)
    (view,) = cluster.taken()[0][1:]
    for worker in (0, 1):
        cluster.give(worker, "parameters", b"equal", view.number)
    assert cluster.taken() == {}
    cluster.give(2, "parameters", b"equal", view.number)
    assert sorted(cluster.taken()) == [0, 1, 2]


def test_a_worker_that_rejoins_without_contributing_waits_longer_and_is_named():
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
    assert cluster.coordinator.idle_sessions == {2: 8}
    (line,) = [line for line in cluster.lines if line.endswith("it may join again in 20 s.")]
    assert line.startswith("worker 2 (host2:1) came and left 5 times without contributing")


def test_who_must_wait_joins_when_the_time_is_over_or_when_it_is_needed():
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


def test_who_has_contributed_need_not_wait_to_join_again():
    cluster = entered()
    cluster.leave()
    cluster.join()
    assert cluster.coordinator.idle_sessions == {2: 2}
    assert cluster.make_step(0, 2) and cluster.make_step(0, 2)
    assert cluster.coordinator.idle_sessions == {}
    cluster.leave()
    assert cluster.coordinator.idle_sessions == {}


@pytest.mark.parametrize(
    ("workers", "rules"), [(2, {"elastic": True}), (3, {"needed": 1})], ids=str
)
def test_one_that_comes_back_alone_gets_values_before_it_reports_its_state(workers, rules):
    coordinator, _ = started_workers(workers, **rules)
    for worker in reversed(range(workers)):
        coordinator.lose(worker)
    coordinator.connect(0)
    coordinator.give(0, "configuration", b"")  # it reports its state after that
    coordinator.taken()
    coordinator.pass_secs(SECS + 1)
    assert "values" in coordinator.taken()[0]


@pytest.mark.parametrize("lost", [0, 1])
def test_where_all_are_needed_the_others_end_without_a_lost_one_unless_it_saves(lost):
    cluster, view = started_workers(2)
    assert view.saver == 0
    cluster.lose(lost)
    cluster.give(1 - lost, "parameters at the end", b"", view.number)
    assert cluster.taken() == {}
    cluster.pass_secs(SECS + 1)
    assert cluster.taken()[1 - lost] == ["values"] * (lost == 1) + ["end"]
