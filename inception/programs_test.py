"""What all programs do: their help, and the end of a training that has nothing left to do."""

import pytest
import tensorflow as tf

from inception import programs
from inception.testing.runs import run_program
from terngrad.training import checkpoints


@pytest.mark.parametrize("program", [programs.train, programs.evaluate])
def test_the_help_begins_with_the_description(program, capsys):
    program("mnist", "What it does.\n\nHow.", ["mnist", "--help"])
    assert capsys.readouterr().out.startswith("What it does.\n\nHow.\n\nData:\n")


@pytest.mark.parametrize("max_steps", [10, 7])
def test_a_training_with_nothing_left_ends_before_it_reads_or_builds(tmp_path, capsys, max_steps):
    path = checkpoints.save(str(tmp_path), {"step": tf.Variable(10)}, 10)
    flags = [f"--train_dir={tmp_path}", f"--max_steps={max_steps}", "--data_dir=/absent"]
    programs.train("mnist", "", ["mnist_train", *flags])
    assert (
        capsys.readouterr().out
        == f"There is nothing left to train up to step {max_steps}: {path}\n"
    )


@pytest.mark.parametrize("program", ["slim.eval_image_classifier", "inception.mnist_eval"])
@pytest.mark.parametrize(
    ("run_once", "inert"), [(True, ["eval_interval_secs", "max_steps"]), (False, [])]
)
def test_what_follows_a_training_is_named_where_one_checkpoint_is_evaluated(
    program, run_once, inert, monkeypatch, capsys
):
    monkeypatch.setattr(programs, "run_evaluation", lambda config: None)
    run_program(program, f"--run_once={run_once}", "--eval_interval_secs=7", "--max_steps=9")
    lines = [f"--{name}: has no effect with --run_once." for name in inert]
    assert capsys.readouterr().out.splitlines() == lines
