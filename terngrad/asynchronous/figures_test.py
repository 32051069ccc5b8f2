"""Figures of a ps of asynchronous training."""

from terngrad.asynchronous.figures import Figures, WorkerFigures


def test_figures_are_by_worker_and_of_the_time_since_the_last_report():
    now = [10.0]
    figures = Figures(2, lambda: now[0])
    for worker in (0, 1, 1):
        figures.add(worker, updates=1, bytes_in=5, bytes_out=7)
    figures.add(1, dropped=1, held_secs=0.5)
    now[0] = 14.0
    found = figures.report()
    assert found.workers == (WorkerFigures(1, 0, 5, 7, 0.0), WorkerFigures(2, 1, 10, 14, 0.5))
    assert (found.seconds, found.updates, found.dropped) == (4.0, 3, 1)
    now[0] = 15.0
    assert figures.report().updates == 0
