"""Each example trains with the settings and the seed that its row of the table names."""

from pathlib import Path

import pytest

from benchmarks import examples_benchmark

_EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize("name", ["autoencoder", "cifar10_augmentation", "transfer_learning"])
def test_an_example_gets_the_settings_and_the_seed_and_is_a_program(name):
    text = examples_benchmark.with_settings(
        (_EXAMPLES / f"{name}.py").read_text(), 'gradients="5-level"', 3
    )
    compile(text, name, "exec")
    assert 'distribute(optimizer, group, seed=3, gradients="5-level")' in text
    assert "set_random_seed(3)" in text


@pytest.mark.slow
def test_each_kind_of_training_has_an_accuracy_for_each_seed(run):
    small = ("--train_size=64", "--test_size=32", "--epochs=1", "--batch_size=16")
    kinds = ("--trainings=alone,ternary_channel", "--seeds=2")
    figures = run("examples_benchmark", "--examples=text_classification", *kinds, *small)
    found = figures["accuracy"]["text_classification"]
    assert list(found) == ["alone", "ternary_channel"]
    assert all(len(each) == 2 and 0 <= min(each) <= max(each) <= 1 for each in found.values())


@pytest.mark.parametrize(
    "flag, wrong",
    [("examples", "mnist"), ("cifar10", "/no/archive"), ("data_dir", "/no/folder")],
)
def test_a_wrong_flag_is_refused_before_anything_trains(run, capsys, flag, wrong):
    with pytest.raises(SystemExit) as ended:
        run("examples_benchmark", f"--{flag}={wrong}")
    assert ended.value.code not in (0, None)
    assert f"--{flag}={wrong}" in capsys.readouterr().err + str(ended.value)
