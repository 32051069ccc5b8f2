import pytest
import tensorflow as tf

from inception import programs
from inception.training import preparation
from terngrad.training import checkpoints


@pytest.mark.parametrize("program", [programs.train, programs.evaluate])
def test_the_help_begins_with_the_description(program, capsys):
    program("mnist", "What it does.\n\nHow.", ["mnist", "--help"])
    assert capsys.readouterr().out.startswith("What it does.\n\nHow.\n\nData:\n")


def test_a_signal_before_the_first_step_says_that_nothing_is_lost(monkeypatch, capsys):
    def interrupted(config):
        raise KeyboardInterrupt

    monkeypatch.setattr(preparation, "prepare", interrupted)
    with pytest.raises(SystemExit) as exit_info:
        programs.train("mnist", "", ["mnist_train", "--benchmark_mode"])
    assert exit_info.value.code == 130
    assert capsys.readouterr().out == (
        "SIGINT: stopped before the first step of this run; nothing is lost.\n"
    )


@pytest.mark.parametrize("max_steps", [10, 7])
def test_a_training_with_nothing_left_ends_before_it_reads_or_builds(tmp_path, capsys, max_steps):
    path = checkpoints.save(str(tmp_path), {"step": tf.Variable(10)}, 10)
    flags = [f"--train_dir={tmp_path}", f"--max_steps={max_steps}", "--data_dir=/absent"]
    programs.train("mnist", "", ["mnist_train", *flags])
    assert (
        capsys.readouterr().out
        == f"There is nothing left to train up to step {max_steps}: {path}\n"
    )
