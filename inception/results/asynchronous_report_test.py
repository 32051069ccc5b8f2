"""What a ps of asynchronous training says of its work."""

from types import SimpleNamespace

import pytest

from inception.results.asynchronous_report import AsynchronousReport
from inception.results.report import read_scalars
from terngrad.asynchronous.figures import Figures
from terngrad.asynchronous.staleness import Staleness


@pytest.fixture
def server():
    """One that made 3 updates in 10 s of a run that began at a large step."""
    now = [0.0]
    figures = Figures(2, lambda: now[0])
    for worker in (0, 0, 1):
        figures.add(worker, updates=1, bytes_in=1_000_000, bytes_out=2_000_000)
    figures.add(0, held_secs=1.5)
    figures.add(1, dropped=1)
    now[0] = 10.0
    store = SimpleNamespace(version=50_000, take_staleness=lambda: Staleness(3, 6, 4))
    return SimpleNamespace(figures=figures, store=store)


def test_a_line_tells_pace_staleness_traffic_waiting_and_what_was_dropped(server):
    said = []
    report = AsynchronousReport(server, said.append, None)
    for _ in range(2):  # nothing comes in between
        report.report()
    assert said == [
        "step 50000 (0.3 updates/sec), staleness mean 2.00 max 4; "
        "worker 0: 2 updates, 2.0 MB in, 4.0 MB out, held for 1.5 s; "
        "worker 1: 1 updates, 1 too late, 1.0 MB in, 2.0 MB out, held for 0.0 s"
    ]


def test_tensorboard_gets_the_same_by_worker(server, tmp_path):
    AsynchronousReport(server, print, str(tmp_path / "ps_0")).report()
    scalars = read_scalars(str(tmp_path / "ps_0"))
    assert {tag: curve.values[-1] for tag, curve in scalars.items()} == pytest.approx(
        {
            "ps/steps_per_sec": 0.3,
            "ps/staleness/mean": 2.0,
            "ps/staleness/max": 4.0,
            "ps/steps_per_sec/0": 0.2,
            "ps/steps_per_sec/1": 0.1,
            "ps/bytes_in_per_sec/0": 2e5,
            "ps/bytes_in_per_sec/1": 1e5,
            "ps/bytes_out_per_sec/0": 4e5,
            "ps/bytes_out_per_sec/1": 2e5,
            "ps/held_secs/0": 1.5,
            "ps/held_secs/1": 0.0,
            "ps/dropped_gradients/0": 0.0,
            "ps/dropped_gradients/1": 1.0,
        }
    )
