"""What a ps says of its work."""

from types import SimpleNamespace

import pytest

from inception.results.report import read_scalars
from inception.training.serving import PsReport, figures_of_parameters, figures_of_sums
from terngrad.asynchronous.staleness import Staleness
from terngrad.service.figures import Figures


class Clock:
    """Stands still unless it is moved."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def summing(server):
    """The figures of a ps that adds the gradients of two workers."""
    return lambda: figures_of_sums(server, ["a:1", "b:2"])


@pytest.fixture
def server(clock):
    """One that has summed 3 steps of 2 workers, the second 10 ms late."""
    figures = Figures(2, clock)
    for step in range(3):
        for worker in (0, 1):
            figures.received(worker, 1_000_000)
            figures.pushed(worker, step, 0.01 * worker)
            figures.sent(worker, 2_000_000)
        figures.made(step)
    aggregator = SimpleNamespace(memory_bytes=5_000_000)
    counts = {"dropped": {1: 4}, "idle_sessions": {1: 3}, "lost_ps": (1, 2)}
    return SimpleNamespace(figures=figures, aggregator=aggregator, coordinator=True, **counts)


def test_a_line_reports_the_traffic_the_straggler_and_what_is_held(server, clock, capsys):
    report = PsReport(summing(server), "ps 0", 30.0, None, clock=clock)
    clock.now = 29.0
    report.beat()
    assert not capsys.readouterr().out
    clock.now = 30.0
    report.beat()
    assert capsys.readouterr().out == (
        "ps 0: step 2, 0.1 steps/s, 5.0 MB of pushes and results in memory; "
        "worker 0: 0.10 MB/s in, 0.20 out, 0.0 ms after the first; "
        "worker 1: 0.10 MB/s in, 0.20 out, 10.0 ms after the first; "
        "slowest: worker 1 (b:2); gradients that came too late: 4 of worker 1; "
        "sessions without a contribution: worker 1 (3); without ps 1, 2.\n"
    )
    clock.now = 60.0
    report.beat()
    assert not capsys.readouterr().out  # nothing was done


def test_a_line_reports_in_how_many_steps_a_backup_worker_took_part(server, clock, capsys):
    for step in range(3, 10):
        server.figures.pushed(0, step, 0.0)
        server.figures.made(step)
    report = PsReport(summing(server), "ps 0", 30.0, None, clock=clock)
    clock.now = 30.0
    report.beat()
    printed = capsys.readouterr().out
    assert "worker 1: 0.10 MB/s in, 0.20 out, in 3 of 10 steps, 10.0 ms after the first;" in printed
    assert "slowest: worker 1 (b:2)" in printed


def test_a_folder_that_cannot_be_written_ends_the_figures_not_the_ps(server, clock, tmp_path):
    (tmp_path / "file").write_text("")
    lines = []
    folder = str(tmp_path / "file" / "ps_0")
    report = PsReport(summing(server), "ps 0", 30.0, folder, lines.append, clock)
    for now in (30.0, 60.0):
        clock.now = now
        server.figures.made(int(now))
        report.beat()
    assert len(lines) == 3
    assert lines[1].startswith(f"No more figures are written to {folder}: ")


def test_tensorboard_gets_the_same_by_worker(server, clock, tmp_path):
    report = PsReport(summing(server), "ps 0", 30.0, str(tmp_path / "ps_0"), clock=clock)
    assert not list(tmp_path.iterdir())
    clock.now = 10.0
    report.report()
    scalars = read_scalars(str(tmp_path / "ps_0"))
    assert {tag: curve.values[-1] for tag, curve in scalars.items()} == pytest.approx(
        {
            "ps/steps_per_sec": 0.3,
            "ps/held_mb": 5.0,
            "ps/lost_ps": 2.0,
            "ps/bytes_in_per_step/0": 1e6,
            "ps/bytes_in_per_step/1": 1e6,
            "ps/bytes_out_per_step/0": 2e6,
            "ps/bytes_out_per_step/1": 2e6,
            "ps/late_ms/0": 0.0,
            "ps/late_ms/1": 10.0,
            "ps/share_of_steps/0": 1.0,
            "ps/share_of_steps/1": 1.0,
            "ps/dropped_gradients/0": 0.0,
            "ps/dropped_gradients/1": 4.0,
            "ps/idle_sessions/0": 0.0,
            "ps/idle_sessions/1": 3.0,
        }
    )


@pytest.fixture
def holder():
    """One that made 3 updates in 10 s of a run that began at a large step."""
    now = [0.0]
    figures = Figures(2, lambda: now[0])
    for worker in (0, 0, 1):
        figures.updated(worker)
        figures.received(worker, 1_000_000)
        figures.sent(worker, 2_000_000)
    figures.blocked(0, 1.5)
    figures.dropped(1)
    now[0] = 10.0
    store = SimpleNamespace(version=50_000, take_staleness=lambda: Staleness(3, 6, 4))
    return SimpleNamespace(workers=SimpleNamespace(figures=figures), store=store)


def test_a_line_reports_pace_staleness_traffic_waiting_and_what_was_dropped(holder):
    said = []
    report = PsReport(lambda: figures_of_parameters(holder), "ps 0", 30.0, None, said.append)
    for _ in range(2):  # nothing comes in between
        report.report()
    assert said == [
        "ps 0: step 50000 (0.3 updates/sec), staleness mean 2.00 max 4; "
        "worker 0: 2 updates, 2.0 MB in, 4.0 MB out, blocked for 1.5 s; "
        "worker 1: 1 updates, 1 too late, 1.0 MB in, 2.0 MB out, blocked for 0.0 s"
    ]
