"""Sweeps over short trainings on the repository's own digits, as a user types them."""

import csv
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from inception.testing.runs import run_program
from slim.conversion import convert
from terngrad.testing import forked
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.processes import Started

REPO = Path(__file__).parents[1]
MNIST = "--program=inception.mnist_train"
TRAININGS = ("--net=mlp", "--batch_size=16", "--save_summaries_secs=0")


@pytest.fixture(scope="session", name="digits")
def _digits(made_once):
    sample = REPO / "slim" / "datasets" / "mnist_sample"
    return made_once(
        "digits", lambda folder: convert.convert("mnist", str(folder), source_dir=str(sample))
    )


def command(folder, digits, *own, steps=20):
    """Returns the command of a sweep."""
    return [
        *(sys.executable, "-m", "inception.sweep", f"--sweep_dir={folder}", *own),
        *("--", f"--data_dir={digits}", f"--max_steps={steps}", *TRAININGS),
    ]


def run(*arguments, **settings):
    done = subprocess.run(command(*arguments, **settings), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rows(folder):
    with (folder / "trials.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_a_grid_ends_with_a_table_and_the_best_command(digits, tmp_path):
    evaluations = "--eval_flags=--num_examples=1000"
    grid = "grad_bits=1 optimizer=gd initial_learning_rate=0,0.05"
    output = run(tmp_path, digits, MNIST, f"--grid={grid}", "--jobs=2", evaluations)
    found = rows(tmp_path)
    assert [row["state"] for row in found] == ["done"] * 2
    best, worst = (float(row["precision"]) for row in found)
    assert found[0]["initial_learning_rate"] == "0.05" and best > worst
    assert {row["step"] for row in found} == {"20"}
    assert all(int(row["bytes_sent"]) > 0 for row in found)
    (line,) = [line for line in output.splitlines() if line.startswith("Repeat the best trial: ")]
    _, *again = shlex.split(line.partition(": ")[2])
    assert forked.run([sys.executable, *again]).returncode == 0
    assert (tmp_path / "best" / "model.ckpt-20.index").exists()
    output = run(tmp_path, digits, MNIST, f"--grid={grid}", "--jobs=2", evaluations)
    assert "0 of 2 trials to run" in output


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_sweep_that_was_ended_goes_on_from_its_trials_checkpoints(digits, tmp_path):
    given = command(tmp_path, digits, MNIST, "--grid=grad_bits=1", steps=1000)
    log = tmp_path / "trial_0000" / "train.log"
    with Started(given) as started:
        wait_for(log, ": step 100,")
        started.process.terminate()
        assert started.finish() == 143
    assert "SIGTERM: the trainings saved; the same command goes on." in started.output
    assert "SIGTERM: saved" in log.read_text(), "the sweep did not wait for it"
    subprocess.run(given, check=True, capture_output=True)
    (row,) = rows(tmp_path)
    assert (row["trial"], row["state"], row["step"]) == ("trial_0000", "done", "1000")
    assert log.read_text().count(": step 100,") == 1, "it began anew"


def wait_for(file, text):
    deadline = time.monotonic() + HANG_SECS
    while not file.exists() or text not in file.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_trial_may_have_several_workers_and_a_failed_one_is_reported(digits, tmp_path):
    program = "--program=inception.mnist_distributed_train"
    grid = f"--grid=grad_bits=1 data_dir={digits},/nowhere"
    output = run(tmp_path, digits, program, grid, "--workers=2", "--objective=seconds")
    done, failed = rows(tmp_path)
    assert (done["state"], done["step"]) == ("done", "20")
    assert failed["state"] == "failed" and "/nowhere" in failed["reason"]
    assert f"failed ({failed['reason']})" in output


@pytest.mark.parametrize(
    ("own", "trainings", "message"),
    [
        ([], [], "flag --program=: must name a training program"),
        (["--program=inception.no", "--grid=a=1"], [], "there is no program inception.no"),
        (
            ["--program=inception.mnist_eval", "--grid=a=1"],
            [],
            "that program has no flag --train_dir",
        ),
        ([MNIST], [], "give one of --grid=VALUES, --random=TRIALS and --tpe=TRIALS"),
        ([MNIST, "--random=2"], [], "flag --space=: must name a flag and its values"),
        ([MNIST, "--grid=seed=1..5"], [], "seed has a range; a grid needs its values"),
        ([MNIST, "--grid=batch_size=30 num_nodes=4"], [], "must be a multiple of the 4 nodes"),
        (
            [MNIST, "--grid=dropout_keep_prob=0.5,0.7 batch_size=32,64"],
            [],
            "flag --grid=dropout_keep_prob=0.5,0.7: has no effect in any trial, with a --net wit",
        ),
        (
            [
                *("--program=slim.train_image_classifier", "--workers=2"),
                "--grid=max_staleness=1,2",
            ],
            ["--dataset_dir=/nowhere"],
            "flag --grid=max_staleness=1,2: has no effect in any trial, with --cross_replica_sync",
        ),
        (
            ["--program=inception.train", "--grid=seed=1"],
            [],
            "flag --dataset_name=: must be given; allowed: mnist",
        ),
        ([MNIST, "--grid=seed=1"], ["--no=1"], "Unknown command line flag 'no'"),
        ([MNIST, "--grid=seed=1"], ["--train_dir=/x"], "each trial has its own in --sweep_dir"),
        ([MNIST, "--grid=seed=1", "--sweep_dir=/proc/x"], [], "flag --sweep_dir=/proc/x: cannot"),
        (
            [MNIST, "--grid=seed=1", "--eval_flags=--no=1"],
            [],
            "flag --eval_flags=--no=1: inception.mnist_eval: Unknown command line flag 'no'",
        ),
        ([MNIST, "--grid=seed=1", "--ps=1"], [], "flag --ps=1: needs --workers"),
        (
            [MNIST, "--grid=seed=1", "--workers=2"],
            [],
            "flag --workers=2: must be 0: inception.mnist_train trains in one process",
        ),
        (
            ["--program=inception.mnist_distributed_train", "--grid=seed=1"],
            [],
            "flag --workers=0: must be at least 1 for inception.mnist_distributed_train",
        ),
        (
            [MNIST, "--grid=seed=1", "--pruner=asha", "--objective=bytes"],
            [],
            "flag --pruner=asha: needs the one objective precision",
        ),
        (
            ["--program=inception.mnist_distributed_train", "--workers=2", "--grid=bandwidth=fast"],
            [],
            "flag --bandwidth=fast: must be unshaped, or a rate such as 100mbit",
        ),
    ],
)
def test_law_10_what_cannot_work_is_reported_at_once(own, trainings, message):
    words = ["inception.sweep", *own, *(["--", *trainings] if trainings else [])]
    with pytest.raises(SystemExit) as ended:
        run_program(*words)
    assert ended.value.code.startswith("sweep: ") and message in ended.value.code
    assert "\n" not in ended.value.code


def test_without_optuna_the_error_says_how_to_get_it(tmp_path):
    (tmp_path / "optuna.py").write_text("raise ModuleNotFoundError('no', name='optuna')")
    words = [sys.executable, "-m", "inception.sweep", MNIST, "--grid=seed=1"]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{REPO}"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    how = "bash scripts/setup.sh sweep, or pip install '.[sweep]'"
    assert done.stderr == f"sweep: sweeps need Optuna: {how}\n"
