"""Random histories of a cluster: no worker breaks a law, and live workers make progress."""

import pytest

from terngrad.testing.simulation import explore
from terngrad.testing.simulation.laws import BrokenLawError


def test_histories_are_explored_and_printed(capsys):
    assert explore.main(["--histories=3", "--verbose"]) == 0
    reported = capsys.readouterr().out
    assert reported.count("settle") == 3
    assert "3 histories from 0 on, 0 broken" in reported


@pytest.mark.slow
def test_no_history_of_a_few_breaks_a_law(capsys):
    assert explore.main(["--histories=300", "--first=200000"]) == 0, capsys.readouterr().out


@pytest.mark.exhaustive
def test_no_history_of_many_breaks_a_law(capsys):
    assert explore.main(["--histories=4000", "--first=201000"]) == 0, capsys.readouterr().out


def test_a_history_that_breaks_a_law_is_named(monkeypatch, capsys):
    def settle(self, restart, restart_ps):
        raise BrokenLawError("no progress")

    monkeypatch.setattr(explore.SimulatedCluster, "settle", settle)
    assert explore.main(["--histories=1", "--first=5"]) == 1
    assert "history 5: BrokenLawError: no progress" in capsys.readouterr().out


@pytest.mark.parametrize(
    "number",
    [
        3978,  # a worker hung amid the step of the others, and all ended without its name
        4823,  # nobody began without a worker that hung before the first view
        13879,  # a chief that was lost before the first view was not named
        31429,  # a worker that trained did not compare the state with which the training began anew
        35173,  # a worker that was about to join had the state, and nobody asked it
        64552,  # the donor was killed while the chief received its state
        105910,  # the worker that was well blinked when another that hung was to be left behind
        127482,  # ps 0 had seen only the Exchange stream of the last worker, and waited without end
        149658,  # a worker hung after another was done, and ps 0 failed
        157323,  # the chief could go on anew where another hung, but the training ended
    ],
)
def test_histories_that_found_mistakes_break_no_law_any_more(number):
    assert explore.main(["--histories=1", f"--first={number}"]) == 0
