"""What all programs do: their help, and the end of a training that has nothing left to do."""

import pytest
import tensorflow as tf

from inception import programs
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
