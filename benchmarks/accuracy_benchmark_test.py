"""The benchmark trains the missing runs and compares them with the paper and with each other."""

import dataclasses
import itertools
import math
import signal
import subprocess
from pathlib import Path

import pytest
from absl import flags

from benchmarks import accuracy_benchmark
from benchmarks.accuracy_benchmark import _learning_rate, _Options, _row, _Training
from benchmarks.ddp import train
from benchmarks.recipes import RECIPES
from inception.flags import command_line, table
from inception.results.metrics import Metrics
from inception.results.report import Curve, Run
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
    found = {name: of_all_seeds["seeds"][0] for name, of_all_seeds in runs.items()}
    assert found["float"]["payload_bytes"] / found["t2"]["payload_bytes"] == pytest.approx(16, 1e-3)
    for name, each in found.items():
        curve = each["accuracy"]
        assert curve["steps"] == list(range(1, STEPS + 1))
        assert curve["values"][-1] == each["metrics"]["precision_at_1"]
        assert each["ms_per_step"] > 0
        newest = checkpoints.latest_checkpoint(str(tmp_path / f"lenet_{name}_{STEPS}"))
        assert checkpoints.step_of(newest) == STEPS
    for picture in ("lenet_accuracy.png", "lenet_bits.png"):
        assert (tmp_path / picture).stat().st_size > 0

    assert "Training LeNet" in capsys.readouterr().out
    assert run("accuracy_benchmark", *arguments)["runs"] == runs
    assert "Training LeNet" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.exhaustive
def test_workers_send_packed_codes_and_each_seed_trains_another_net(
    run, digits, tmp_path, monkeypatch
):
    lenet = RECIPES["lenet"]
    chosen = {"ternary": RECIPES["codecs"].trainings["ternary"]}
    monkeypatch.setitem(RECIPES, "lenet", dataclasses.replace(lenet, trainings=chosen, workers=2))
    arguments = (f"--data_dir={digits}", f"--output_dir={tmp_path}", f"--max_steps={STEPS}")
    first, second = run("accuracy_benchmark", *arguments, "--seeds=2")["runs"]["ternary"]["seeds"]
    assert 0 < first["bits_per_parameter"] < 2
    assert first["loss"] != second["loss"]


def test_a_kind_of_gradients_that_is_given_twice_is_refused(run):
    with pytest.raises(SystemExit, match="flag --trainings=float,float: one appears twice"):
        run("accuracy_benchmark", "--trainings=float,float")


def test_the_folder_of_a_training_says_what_is_not_the_recipes_own(tmp_path):
    recipe = RECIPES["codecs"]
    own = recipe.learning_rates[0]
    folder = lambda *which: _Training(recipe, "float", *which).folder(str(tmp_path))
    assert folder(recipe.max_steps, own) == str(tmp_path / "codecs_float")
    assert folder(5, own) == str(tmp_path / "codecs_float_5")
    assert folder(5, 4e-4, 3) == str(tmp_path / "codecs_float_5_rate0.0004_seed3")


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_no_two_trainings_of_a_recipe_have_one_folder(recipe):
    lengths = {recipe.max_steps} | {recipe.round_steps * i for i in (1, 4, 10, 16, 64)}
    which = list(itertools.product(recipe.trainings, lengths, recipe.learning_rates, (1, 2)))
    assert len({_Training(recipe, *each).folder("results") for each in which}) == len(which)


def test_a_folder_with_a_training_on_other_data_is_refused(monkeypatch, tmp_path):
    training = _Training(RECIPES["codecs"], "ternary", 50, FIRST)
    folder = training.folder(str(tmp_path))
    status = lambda data: training.status(_Options(output_dir=str(tmp_path), data_dir=str(data)))
    commands = _ending(monkeypatch, {}, {})
    status(tmp_path / "typo")  # it saves nothing
    status(tmp_path / "data")
    for name in ("model.ckpt-25.index", "model.ckpt-50.index"):  # continued; done
        (Path(folder) / name).touch()
        why = rf"^flag --data_dir=.*/other: {folder} holds a training on .*/data; choose another "
        with pytest.raises(ValueError, match=why):
            status(tmp_path / "other")
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to("data")
        assert status(tmp_path / "link") == 0
    assert len(commands) == 3
    (Path(folder) / "data_dir").unlink()  # as in a folder of an earlier version
    assert status(tmp_path / "other") == status(tmp_path / "data") == 0


def _ending(monkeypatch, statuses, losses):
    """Lets trainings end with exit statuses and last losses, by rate; returns their commands."""
    commands = []

    def rate_of_last():
        texts = (part.partition("--initial_learning_rate=")[2] for part in commands[-1])
        return float("".join(texts))

    def run(command, check):
        commands.append(command)
        return subprocess.CompletedProcess(command, statuses.get(rate_of_last(), 0))

    scalars = lambda folder: {"losses/entropy_loss": Curve([1, 2], losses[rate_of_last()])}
    monkeypatch.setattr(accuracy_benchmark.subprocess, "run", run)
    monkeypatch.setattr(accuracy_benchmark, "read_scalars", scalars)
    return commands


def _chosen(output_dir, **options):
    options = _Options(output_dir=str(output_dir), **options)
    return _learning_rate(RECIPES["codecs"], "ternary", options)


FIRST, SECOND, THIRD = RECIPES["codecs"].learning_rates


def test_the_learning_rate_with_the_lowest_last_losses_is_chosen(monkeypatch, tmp_path):
    losses = {FIRST: [1.0, 3.0], SECOND: [9.0, 1.0], THIRD: [0.0, 2.0]}
    commands = _ending(monkeypatch, {}, losses)
    assert _chosen(tmp_path, tuning_steps=50) == SECOND
    assert len(commands) == 3
    assert all({"--max_steps=50", "--seed=1", "--grad_bits=1"} <= set(each) for each in commands)
    assert _chosen(tmp_path) == FIRST
    assert len(commands) == 3


def test_rates_whose_training_fails_or_diverges_are_not_chosen(monkeypatch, tmp_path):
    losses = {FIRST: [1.0, math.nan], SECOND: [0.0, 0.0], THIRD: [9.0, 9.0]}
    _ending(monkeypatch, {SECOND: 1}, losses)
    assert _chosen(tmp_path, tuning_steps=50) == THIRD
    _ending(monkeypatch, {SECOND: 1, THIRD: 1}, losses)
    text = "flag --tuning_steps=50: ternary: no learning rate gives a finite loss; tried were "
    with pytest.raises(ValueError, match=f"{text}0.0008, 0.0004, 0.0016"):
        _chosen(tmp_path, tuning_steps=50)


@pytest.mark.parametrize(("code", "status"), [(130, 130), (143, 143), (-signal.SIGTERM, 143)])
def test_an_interrupted_short_training_ends_the_program(monkeypatch, tmp_path, code, status):
    _ending(monkeypatch, {SECOND: code}, {FIRST: [1.0, 1.0], THIRD: [1.0, 1.0]})
    with pytest.raises(SystemExit) as end:
        _chosen(tmp_path, tuning_steps=50)
    assert end.value.code == status


def test_a_failed_training_ends_the_program_with_its_status(monkeypatch, tmp_path):
    _ending(monkeypatch, {FIRST: 1}, {})
    training = _Training(RECIPES["codecs"], "ternary", 50, FIRST)
    with pytest.raises(SystemExit) as end:
        training.run(_Options(output_dir=str(tmp_path)))
    assert end.value.code == 1


def test_a_row_tells_mean_and_deviation_of_the_seeds():
    recipe = RECIPES["codecs"]
    runs = [
        Run(Curve([], []), Curve([], []), Metrics(precision, 1.0, 100), 10, 20.0, 2.0, 3.0)
        for precision in (0.5, 0.75, 1.0)
    ]
    row = _row(runs, recipe, "ternary", 2e-4)
    assert (row["gradients"], row["precision @ 1"]) == ("ternary", "75.00 % ± 25.00")
    assert _row(runs[:1], recipe, "ternary", 2e-4)["precision @ 1"] == "50.00 %"


def test_an_unknown_kind_of_gradients_is_refused_with_those_that_there_are(run):
    text = "flag --trainings=float,t3: allowed are float, t2, t4, t8"
    with pytest.raises(SystemExit, match=text):
        run("accuracy_benchmark", "--trainings=float,t3")


@pytest.mark.parametrize(
    ("recipe", "name"),
    [(recipe, name) for recipe in RECIPES for name in RECIPES[recipe].own_trainings],
)
def test_the_training_program_takes_the_flags_of_each_training(recipe, name):
    recipe = RECIPES[recipe]
    command = _Training(recipe, name, STEPS, 0.25, seed=3)._command(_Options(), "folder")
    program = next(part for part in command if part.startswith("inception.") and "train" in part)
    define = command_line.define_train if recipe.workers == 1 else command_line.define_distributed
    values = flags.FlagValues()
    define(values, recipe.dataset)
    values([program, *(part for part in command if part.startswith("--"))])
    config = command_line.read_train(values)
    assert (config.net, config.seed, config.initial_learning_rate) == (recipe.net, 3, 0.25)
    share = recipe.trainings[name].batch_share
    assert config.batch_size * recipe.workers == recipe.batch_size * share


@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        (recipe, name)
        for recipe in RECIPES
        for name, gradients in RECIPES[recipe].trainings.items()
        if gradients.ddp
    ],
)
def test_ddp_trains_with_the_settings_of_the_recipe(recipe, name):
    recipe = RECIPES[recipe]
    training = _Training(recipe, name, STEPS, 0.25, seed=3)
    command = training._command(_Options(torch_python="python3"), "folder")
    values = flags.FlagValues()
    table.define(train.Options, values)
    values(["train", *(part for part in command if part.startswith("--"))])
    options = table.read(train.Options, values)
    assert (options.net, options.seed, options.initial_learning_rate) == (recipe.net, 3, 0.25)
    assert options.batch_size * options.hosts == recipe.batch_size
    assert {f"--weight_decay={options.weight_decay}", "--optimizer=adam"} == {*recipe.flags}


def test_a_training_with_local_steps_ends_at_the_end_of_a_round(run):
    text = "flag --tuning_steps=1000: allowed are multiples of 64 with this recipe"
    with pytest.raises(SystemExit, match=text):
        run("accuracy_benchmark", "--recipe=local_steps", "--tuning_steps=1000")


def test_trainings_of_ddp_need_an_interpreter_with_torch(run):
    with pytest.raises(SystemExit, match="flag --trainings=ddp_float32: those of DDP need "):
        run("accuracy_benchmark", "--recipe=codecs", "--trainings=ddp_float32")
