"""What a sweep says of the flags that it is asked to try, before it starts a trial."""

import pytest
from absl.flags import FlagValues

from inception import app
from inception.flags import table
from inception.sweeping import program, sweeping
from inception.sweeping.messages import End, Outcome
from inception.sweeping.settings import SweepFlags


def settings_of(*own):
    values = FlagValues()
    table.define(SweepFlags, values)
    app.parse(values, ["--program=inception.mnist_train", *own])
    return table.read(SweepFlags, values)


def plan(*own):
    settings = settings_of(*own)
    return sweeping.make_plan(settings, program.of(settings.program, ""), [])


@pytest.mark.parametrize(
    ("own", "told"),
    [
        (
            ["--grid=grad_bits=1,32 clip_factor=0,2"],
            "in 2 of 4 trials, with --grad_bits other than",
        ),
        (["--tpe=12", "--space=dropout_keep_prob=0.6..0.9"], "in 10 of the first 10 trials, with"),
        (["--grid=optimizer=gd,adam num_epochs_per_decay=1,2"], "in 2 of 4 trials, with a decay"),
    ],
)
def test_a_flag_without_effect_in_some_trials_is_told(own, told, capsys):
    plan(*own)
    (line,) = capsys.readouterr().out.splitlines()
    assert told in line


def test_nothing_is_told_of_flags_with_effect(capsys):
    plan("--random=5", "--space=clip_factor=1..4 grad_bits=1")
    assert not capsys.readouterr().out


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.DONE])
def test_a_sweep_without_a_complete_trial_has_failed(outcome, monkeypatch, tmp_path, capsys):
    class Sweeper:
        """Ends each trial at once; DONE without a precision counts as failed, too."""

        def __init__(self, study, *others):
            self.study = study

        def run(self, found):
            while task := self.study.next():
                self.study.end(task, End(outcome, 1.0, None, "no such net", None), False, 0)

    monkeypatch.setattr(sweeping, "Sweeper", Sweeper)
    settings = settings_of(f"--sweep_dir={tmp_path}", "--grid=optimizer=gd,adam")
    with pytest.raises(ValueError, match=r"^none of 2 trials is complete; .*trials\.csv has"):
        sweeping.sweep(settings, [])
    assert "All trials: " in capsys.readouterr().out
