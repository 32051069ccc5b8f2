"""The benchmark trains the missing runs and compares them with the paper."""

import dataclasses

import pytest

from benchmarks.accuracy_benchmark import folder_of
from benchmarks.recipes import RECIPES
from terngrad.training import checkpoints

STEPS = 10


@pytest.mark.slow
def test_a_recipe_is_trained_once_and_reported(run, digits, tmp_path, monkeypatch, capsys):
    lenet = RECIPES["lenet"]
    chosen = {name: lenet.trainings[name] for name in ("float", "t2")}
    monkeypatch.setitem(RECIPES, "lenet", dataclasses.replace(lenet, trainings=chosen))
    arguments = (f"--data_dir={digits}", f"--output_dir={tmp_path}", f"--max_steps={STEPS}")

    figures = run("accuracy_benchmark", *arguments)
    runs = figures["runs"]
    assert {name: found["paper"] for name, found in runs.items()} == {"float": 99.21, "t2": 99.22}
    assert runs["float"]["payload_bytes"] / runs["t2"]["payload_bytes"] == pytest.approx(16, 1e-3)
    for name, found in runs.items():
        curve = found["accuracy"]
        assert curve["steps"] == list(range(1, STEPS + 1))
        assert curve["values"][-1] == found["metrics"]["precision_at_1"]
        assert found["ms_per_step"] > 0
        newest = checkpoints.latest_checkpoint(str(tmp_path / f"lenet_{name}_{STEPS}"))
        assert checkpoints.step_of(newest) == STEPS
    assert (tmp_path / "lenet_accuracy.png").stat().st_size > 0

    assert "Training LeNet" in capsys.readouterr().out
    assert run("accuracy_benchmark", *arguments)["runs"] == runs
    assert "Training LeNet" not in capsys.readouterr().out


def test_the_recipes_own_length_has_the_plain_folder_names(tmp_path):
    recipe = RECIPES["cifar10"]
    folder = folder_of(str(tmp_path), recipe, "clip", recipe.max_steps)
    assert folder == str(tmp_path / "cifar_clip")
    assert folder_of(str(tmp_path), recipe, "clip", 5).endswith("cifar_clip_5")
