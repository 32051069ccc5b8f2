"""The benchmark of asynchronous training runs, and its bytes are those of the formula."""

import math

import pytest


@pytest.mark.slow
@pytest.mark.timeout(600)
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
    assert runs.keys() == {"float", "ternary"}
    values = 784 * 100 + 100 + 100 * 10 + 10
    assert runs["float"]["bytes_pushed"] == 4 * values
    words = 8 * math.ceil(values / 32)
    assert runs["ternary"]["bytes_pushed"] == pytest.approx(words + 4 * 4, abs=1)
    for found in runs.values():
        assert found["updates"] == 2 * 6 * 2
        assert found["secs"] > 0 and 0 <= found["mean_staleness"] < found["updates"]
        assert found["bytes_pulled"] == 4 * values
    assert picture.stat().st_size > 0
