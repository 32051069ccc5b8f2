"""The training scripts run from records to an evaluated model, with few steps.

Most tests put a small shell script in the place of Python: it shows what a script starts, and how.
"""

import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest

from inception import app
from inception.flags import command_line
from slim.testing import write_digits
from terngrad.testing.processes import Started, wait_until

_REPO = pathlib.Path(__file__).parents[1]
_LENET = "scripts/run_multi_gpus_lenet.sh"
_SHORT = {"MAX_STEPS": "20", "SAVE_ITER": "10", "EVAL_INTERVAL_SECS": "0.5"}
_PRECISION = re.compile(r"precision @ 1 = ([01]\.\d+) recall @ 5 = [01]\.\d+ \[\d+ examples\]")

# In the place of Python, mpirun and horovodrun: notes its arguments, then does what a test wants.
_PYTHON = """#!/usr/bin/env bash
if [[ "$(basename "$0")" =~ ^(mpi|horovod)run$ ]]; then
  shift $((2 + $(wc -w <<< "${MPI_FLAGS:-}"))) && exec "$@"
  exit 1
fi
trap 'echo saved > "${NOTES}.$2"; exit 0' TERM
line="$(printf '%s|' "${@:2}")"
echo "${line}" >> "${NOTES}"  # at once: another program writes, too
case "$2" in
  *_train) eval "${TRAINING:-}" ;;
  *_eval) eval "${EVALUATION:-}" ;;
esac
"""

real = pytest.mark.slow


@pytest.fixture(scope="session")
def digits(made_once) -> pathlib.Path:
    """Records of some of the repository's digits, in a folder whose name has a space."""
    return made_once("some digits", lambda folder: write_digits(folder, count=512))


def _started(script: str, **settings) -> Started:
    env = {"TERNGRAD_VENV": sys.prefix} | {key: str(value) for key, value in settings.items()}
    return Started(["bash", str(_REPO / script)], env, in_own_group=True)


def _run(script: str, **settings) -> tuple[int, str]:
    with _started(script, **settings) as run:
        return run.finish(), run.output


@real
def test_lenet_is_trained_and_evaluated_under_the_name_of_its_settings(digits, tmp_path):
    code, output = _run(_LENET, DATA_DIR=digits, ROOT_WORKSPACE=tmp_path, **_SHORT)
    assert code == 0, output
    assert float(_PRECISION.search(output.splitlines()[-1])[1]) > 0.2
    (run,) = (tmp_path / "mnist_training_data").iterdir()
    name = r"mnist_lenet_28_momentum_1_0.01_0.0_0_0.0005_0.9_1_64_4_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d"
    assert re.fullmatch(name, run.name)
    assert (run / "model.ckpt-20.index").exists()
    assert (tmp_path / "mnist_eval_data" / run.name).is_dir()
    logs = {path.name: path.read_text() for path in (tmp_path / "mnist_info").iterdir()}
    assert "step 20, entropy_loss = " in logs[f"training_{run.name}_info.txt"]
    assert _PRECISION.search(logs[f"eval_{run.name}_info.txt"])


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Lets scripts start a shell script; returns the commands so far, each from its module on."""
    folder, notes = tmp_path / "venv/bin", tmp_path / "notes"
    folder.mkdir(parents=True)
    for name in ("python", "mpirun", "horovodrun"):
        (folder / name).write_text(_PYTHON)
        (folder / name).chmod(0o755)
    for name in ("train-mnist.tfrecord", "test-mnist.tfrecord", "validation-0", "checkpoint"):
        (tmp_path / name).touch()
    settings = {"TERNGRAD_VENV": folder.parent, "NOTES": notes, "DATA_DIR": tmp_path}
    settings |= {"ROOT_WORKSPACE": tmp_path, "TRAIN_DIR": tmp_path / "run"}
    settings |= {"PRETRAINED_CHECKPOINT": tmp_path / "checkpoint"}
    for name, value in settings.items():
        monkeypatch.setenv(name, str(value))
    return lambda: [line.split("|")[:-1] for line in notes.read_text().splitlines()]


_RECIPES = sorted(
    str(path.relative_to(_REPO))
    for pattern in ("scripts/run_multi_gpus_*.sh", "slim/scripts/*_on_*.sh")
    for path in _REPO.glob(pattern)
)


@pytest.mark.parametrize("script", [*_RECIPES, "scripts/run_inception_resnet_v2.sh"])
def test_a_recipe_gives_its_programs_flags_that_they_know(script, fake):
    workers = ["2"] if "resnet_v2.sh" in script else []
    subprocess.run(["bash", _REPO / script, *workers], capture_output=True, check=True)
    commands = fake()
    assert any("train" in module for module, *_ in commands)
    for module, *arguments in commands:
        app.parse(command_line.flags_of(module), arguments, command_line.positional_of(module))


@pytest.mark.parametrize("net", ["alexnet", "cifarnet"])
def test_a_worker_lists_the_settings_of_a_recipe_which_run_dist_sends_to_hosts(net):
    lines = (_REPO / "scripts/recipe.sh").read_text().splitlines()
    code = "\n".join(line for line in lines if not line.startswith("#"))
    script = (_REPO / f"scripts/run_single_worker_{net}.sh").read_text()
    listed = set(re.findall(r'^: "\$\{([A-Z_]+):=', script, re.MULTILINE))
    assert "SEED" in listed
    assert set(re.findall(r"\b[A-Z][A-Z_]+\b", code)) - listed == {"RECIPE"}


@pytest.mark.parametrize(
    ("script", "settings", "name"),
    [
        ("googlenet", {}, "imagenet_googlenet_224_momentum_1_0.04_2.5_0_0.00001_0.9_1_128_2"),
        (
            "cifar10",
            {"GRAD_BITS": "32"},
            "cifar10_cifar10_alexnet_24_adam_32_0.0002_2.5_0_0.004_0.9_1_128_2",
        ),
        (
            "lenet",
            {"CODEC": "7-level"},
            "mnist_lenet_28_momentum_7-level_0.01_suited_0_0.0005_0.9_suited_64_4",
        ),
    ],
)
def test_a_run_has_the_name_of_its_settings(script, settings, name, fake, tmp_path):
    command = ["bash", _REPO / f"scripts/run_multi_gpus_{script}.sh"]
    subprocess.run(command, env=os.environ | settings, check=True)
    (run,) = tmp_path.glob("*_training_data/*")
    assert run.name.startswith(f"{name}_")
    ((_, *arguments),) = (call for call in fake() if call[0].endswith("_train"))
    assert ("--codec" in arguments) == ("CODEC" in settings) == ("--grad_bits" not in arguments)


@pytest.mark.parametrize("name", ["ö [a] -b", "-n", r"a\b*?"])
def test_records_are_found_in_a_folder_of_any_name(fake, tmp_path, monkeypatch, name):
    (tmp_path / name).mkdir()
    for split in ("train", "test"):
        (tmp_path / name / f"{split}-mnist.tfrecord").touch()
    monkeypatch.chdir(tmp_path)  # the name may be relative
    monkeypatch.setenv("DATA_DIR", name)
    subprocess.run(["bash", _REPO / _LENET], check=True)
    assert any(name in arguments for arguments in fake())


def test_a_net_is_fine_tuned_in_two_stages(fake, tmp_path):
    script = _REPO / "slim/scripts/finetune_inception_v3_on_flowers.sh"
    subprocess.run(["bash", script], check=True)
    stages = [arguments for module, *arguments in fake() if module.endswith("classifier")]
    folders = [f"{tmp_path}/run", f"{tmp_path}/run/all"]
    for (train, evaluation), folder in zip((stages[:2], stages[2:]), folders, strict=True):
        assert f"--train_dir={folder}" in train and f"--checkpoint_path={folder}" in evaluation
    last_layer, whole_net = stages[::2]
    assert f"--checkpoint_path={tmp_path}/checkpoint" in last_layer
    assert "--trainable_scopes=InceptionV3/Logits,InceptionV3/AuxLogits" in last_layer
    assert f"--checkpoint_path={folders[0]}" in whole_net
    assert not [flag for flag in whole_net if flag.startswith("--trainable_scopes")]


def test_launch_local_starts_the_launcher_with_its_arguments(fake):
    arguments = ["--ps=1", "2", "inception.mnist_distributed_train", "--a=1 2"]
    subprocess.run(["bash", _REPO / "scripts/launch_local.sh", *arguments], check=True)
    assert fake() == [["inception.launch", *arguments]]


def test_large_batches_get_a_rate_and_workers_of_their_own(fake, monkeypatch):
    monkeypatch.setenv("TRAIN_BATCH_SIZE", "512")
    monkeypatch.setenv("MPI_FLAGS", "--some\n--more")
    script = _REPO / "scripts/run_inception_resnet_v2.sh"
    subprocess.run(["bash", script, "4"], check=True)
    ((module, *arguments),) = fake()
    values = command_line.flags_of(module)
    app.parse(values, arguments)
    assert values["learning_rate_scaling"].value == "sqrt"
    assert values["warmup_epochs"].value == 5  # 2048 images a step
    assert values["max_steps"].value == 108 * 1281167 // 2048


def test_horovodrun_does_not_take_a_flag_of_the_program_for_its_own(fake, monkeypatch):
    monkeypatch.setenv("ENGINE", "horovod")
    subprocess.run(["bash", _REPO / "scripts/run_inception_resnet_v2.sh", "2"], check=True)
    ((_, *arguments),) = fake()
    assert "--variable_update=horovod" in arguments
    assert "-net" in arguments and "--net" not in arguments  # --network-interface begins alike


def test_a_signal_ends_both_programs_by_sigterm(fake, tmp_path, monkeypatch):
    for program in ("TRAINING", "EVALUATION"):
        monkeypatch.setenv(program, "echo waits; while true; do sleep 0.05; done")
    with Started(["bash", str(_REPO / _LENET)], in_own_group=True) as run:
        run.wait_for("waits")
        wait_until(lambda: len(fake()) == 2, "the evaluation")
        os.kill(run.process.pid, signal.SIGINT)
        run.finish()
        assert not run.outlived()
    for program in ("train", "eval"):
        assert (tmp_path / f"notes.inception.mnist_{program}").exists()


def test_an_evaluation_that_fails_is_told_while_the_training_goes_on(fake, tmp_path, monkeypatch):
    monkeypatch.setenv("EVALUATION", "echo '--batch_size is 0'; exit 1")
    monkeypatch.setenv("TRAINING", f"while [[ ! -e '{tmp_path}/told' ]]; do sleep 0.05; done")
    with Started(["bash", str(_REPO / _LENET)], in_own_group=True) as run:
        run.wait_for("The evaluation failed: --batch_size is 0")
        (tmp_path / "told").touch()
        assert run.finish() == 1, run.output


def test_records_to_evaluate_with_are_missed_before_the_training(fake, tmp_path):
    (tmp_path / "test-mnist.tfrecord").unlink()
    code, output = _run(_LENET)
    assert (code, "no records test-* in " in output) == (1, True)
    assert not (tmp_path / "notes").exists()


def test_a_training_that_fails_gives_its_exit_code_and_ends_the_evaluation(fake, monkeypatch):
    monkeypatch.setenv("TRAINING", "echo 'no optimizer newton'; exit 3")
    monkeypatch.setenv("EVALUATION", "while true; do sleep 0.05; done")
    with Started(["bash", str(_REPO / _LENET)], in_own_group=True) as run:
        assert run.finish() == 3, run.output
        assert "newton" in run.output
        assert not run.outlived()


@pytest.mark.parametrize(
    ("settings", "arguments", "message"),
    [
        ({}, [], "needs the number of WORKERS, got ''"),
        ({}, ["0"], "needs the number of WORKERS, got '0'"),
        ({"ENGINE": "ssh"}, ["2"], "ENGINE must be mpi or horovod, got 'ssh'"),
    ],
)
def test_a_bad_setting_of_the_large_batches_is_named(settings, arguments, message):
    script = str(_REPO / "scripts/run_inception_resnet_v2.sh")
    with Started(["bash", script, *arguments], settings, in_own_group=True) as run:
        assert run.finish() == 1
        assert run.output.strip() == f"run_inception_resnet_v2.sh: {message}"


@pytest.mark.parametrize("net", ["inception_v1", "inception_v3", "resnet_v1_50"])
def test_the_scripts_name_the_published_weights_that_they_need(tmp_path, net):
    script = f"slim/scripts/finetune_{net}_on_flowers.sh"
    code, output = _run(script, TRAIN_DIR=tmp_path / "none")
    assert (code, len(output.splitlines())) == (1, 1)
    assert "set PRETRAINED_CHECKPOINT" in output and f"{net}_2016_08_28.tar.gz" in output
    assert not (tmp_path / "none").exists()


def test_a_missing_checkpoint_is_named_before_pictures_are_downloaded(fake, tmp_path):
    code, output = _run(
        "slim/scripts/finetune_inception_v1_on_flowers.sh", PRETRAINED_CHECKPOINT="/no/such"
    )
    assert (code, output) == (
        1,
        "finetune_inception_v1_on_flowers.sh: no such file: PRETRAINED_CHECKPOINT=/no/such",
    )
    assert not (tmp_path / "notes").exists()
