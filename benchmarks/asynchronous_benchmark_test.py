"""The benchmark of asynchronous training runs, and its bytes match the formula."""

import math
import re
import sys

import pytest

from benchmarks import asynchronous_benchmark
from benchmarks.asynchronous_benchmark import _Options, _read, training_secs
from inception.results.metrics import Metrics
from inception.results.report import Curve


@pytest.mark.slow
def test_runs_are_trained_evaluated_and_reported(run, digits, tmp_path):
    picture = tmp_path / "picture.png"
    figures = run(
        "asynchronous_benchmark",
        f"--data_dir={digits}",
        f"--output_dir={tmp_path / 'runs'}",
        "--workers=2",
        "--epochs=6",
        f"--png={picture}",
    )
    runs = {kind: found["2"] for kind, found in figures["runs"].items()}
    assert runs.keys() == {"float", "ternary", "ternary_both_ways"}
    both_ways = runs.pop("ternary_both_ways")
    assert both_ways["bytes_pulled"] < runs["ternary"]["bytes_pulled"]
    values = 784 * 100 + 100 + 100 * 10 + 10
    assert runs["float"]["bytes_pushed"] == 4 * values
    words = 8 * math.ceil(values / 32)
    assert 0 < runs["ternary"]["bytes_pushed"] <= words + 4 * 4
    for found in runs.values():
        assert found["updates"] == 2 * 6 * 2
        assert found["secs"] > 0 and 0 <= found["mean_staleness"] < found["updates"]
        assert found["bytes_pulled"] == pytest.approx(4 * values, rel=1e-3)  # with padding
    assert picture.stat().st_size > 0


def test_bytes_are_means_over_all_steps(monkeypatch):
    octets = Curve([1, 80, 100], [4000.0, 200.0, 100.0])
    scalars = {f"bytes_{way}_per_step": octets for way in ("sent", "received")}
    scalars["staleness/mean"] = Curve([100], [1.0])
    monkeypatch.setattr(asynchronous_benchmark, "read_scalars", lambda folder: scalars)
    monkeypatch.setattr(asynchronous_benchmark.checkpoints, "latest_checkpoint", lambda folder: "")
    evaluate = asynchronous_benchmark.evaluate
    monkeypatch.setattr(evaluate, "prepare_evaluation", lambda config: None)
    monkeypatch.setattr(evaluate, "measure_checkpoint", lambda *_: Metrics(0.5, 0.9, 10))
    found = _read(_Options(), "folder", 100, 1.0)
    assert found["bytes_pushed"] == found["bytes_pulled"] == (4000 + 79 * 200 + 20 * 100) / 100


BEGINS, ENDS = "A run begins at step 0.", "Finished training at step 9: saved /t/model.ckpt-9"


def saying(*lines, status=0):
    """Returns a command that prints lines and ends."""
    text = "\n".join(lines)
    return [sys.executable, "-c", f"import sys; print({text!r}); sys.exit({status})"]


def test_a_training_lasts_from_the_beginning_of_its_run_to_its_end():
    assert 0 <= training_secs(saying(BEGINS, ENDS)) < 60


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (saying(BEGINS, "over"), "(exit status 0, no line 'Finished training .*ckpt'): A run beg"),
        (saying("x", ENDS), "(exit status 0, no line 'A run begins'): x | Finished"),
        (saying(BEGINS, ENDS, "lost", status=3), "(exit status 3): A run begins at step 0. | "),
    ],
)
def test_a_training_that_failed_or_never_said_when_has_no_duration(command, why):
    with pytest.raises(ValueError, match=re.escape(f"the training failed {why}")):
        training_secs(command)
