"""A ps counts steps and bytes, and finds the slowest worker."""

import pytest

from terngrad.service.figures import Figures


def test_a_training_that_restarts_at_an_earlier_step_is_counted_from_there():
    figures = Figures(1)
    for step in (5000, 100, 101):
        figures.made(step)
    report = figures.report()
    assert (report.step, report.steps) == (101, 3)


def test_figures_are_those_since_the_last_report():
    now = [10.0]
    figures = Figures(2, lambda: now[0])
    for step in (4, 4, 5, 6):
        figures.made(step)
    figures.received(0, 100)
    figures.sent(1, 30)
    figures.pushed(0, 4, 0.0)
    figures.pushed(1, 4, 0.25)
    figures.pushed(1, 4, 0.75)
    now[0] = 12.0
    report = figures.report()
    assert (report.seconds, report.step, report.steps) == (2.0, 6, 3)
    assert (report.workers[0].bytes_in, report.workers[1].bytes_out) == (100, 30)
    assert report.workers[1].mean_late_secs == pytest.approx(0.5)
    assert report.slowest == 1
    assert [worker.steps for worker in report.workers] == [1, 1]
    figures.made(8)
    now[0] = 13.0
    report = figures.report()
    assert (report.seconds, report.step, report.steps) == (1.0, 8, 2)
    assert report.workers[0].bytes_in == 0


def test_the_slowest_worker_has_the_fewest_steps_and_equal_workers_have_none():
    figures = Figures(3)
    for step in range(20):
        for worker in (0, 2) if step % 10 else (1, 2):
            figures.pushed(worker, step, 0.001 * worker)
        figures.made(step)
    report = figures.report()
    assert [worker.steps for worker in report.workers] == [18, 2, 20]
    assert report.slowest == 1
    figures.made(20)
    assert figures.report().slowest is None


def test_steps_that_workers_make_on_their_own_are_counted_by_worker():
    now = [10.0]
    figures = Figures(2, lambda: now[0])
    for worker in (0, 1, 1):
        figures.updated(worker)
    figures.dropped(1)
    figures.blocked(1, 0.5)
    now[0] = 14.0
    report = figures.report()
    assert (report.seconds, report.steps, report.dropped) == (4.0, 3, 1)
    assert [worker.steps for worker in report.workers] == [1, 2]
    assert (report.workers[1].dropped, report.workers[1].blocked_secs) == (1, 0.5)
    report = figures.report()
    assert (report.steps, report.dropped) == (0, 0)
