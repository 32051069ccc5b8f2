"""The benchmark runs, and its figures are consistent."""

import os

import pytest


@pytest.mark.slow
def test_sweeps_and_trials_that_do_nothing_are_timed(run, digits, capsys):
    sizes = ("--trials=1", "--steps=4", "--overhead_trials=1")
    figures = run("scheduling", f"--data_dir={digits}", *sizes)
    cores = len(os.sched_getaffinity(0))
    assert list(figures["sweep_secs"])[-1] == f"{cores} at once"
    assert all(secs > 0 for (secs,) in figures["sweep_secs"].values())
    assert list(figures["overhead_secs"]) == ["this machine"]
    assert "a trial on this machine takes" in capsys.readouterr().out
