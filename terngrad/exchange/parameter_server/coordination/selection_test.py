"""Backup workers: the first ready ones make a step; late gradients are dropped and counted."""

import pytest

from terngrad.exchange.parameter_server.coordination.selection import Selection


def selection(workers=3, needed=2, steps=10):
    return Selection(range(workers), needed, steps)


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
def test_no_step_is_made_without_a_worker_that_insists(late):
    of = selection()
    of.insist(late)
    others = [worker for worker in range(3) if worker != late]
    for worker in others:
        assert list(of.ready(worker, 10)) == []
    ((step, chosen),) = of.ready(late, 10)
    assert step == 10
    assert set(chosen) == {late, others[0]}
    assert list(of.ready(others[0], 11)) == []  # once is enough
    assert list(of.ready(others[1], 11)) == [(11, tuple(others))]


def test_all_workers_that_insist_take_part_even_if_they_are_more_than_needed():
    of = selection()
    for worker in range(3):
        of.insist(worker)
    assert list(of.ready(0, 10)) == list(of.ready(1, 10)) == []
    assert list(of.ready(2, 10)) == [(10, (0, 1, 2))]


def test_impossible_steps_and_workers_outside_the_view_change_nothing():
    of = Selection([0, 2, 3], 2, 10)
    assert list(of.ready(1, 10)) == []
    assert list(of.ready(0, 500)) == []
    assert list(of.ready(0, 10)) == []
    assert list(of.ready(3, 10)) == [(10, (0, 3))]
    assert not of.dropped
