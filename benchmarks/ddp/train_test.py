"""A training with DDP gets the suite's weights and batches; its results are read as the suite's."""

import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.ddp import train
from benchmarks.ddp.batch_stream import StreamOptions
from inception.results.report import read_scalars
from inception.training.batches import training_batches
from inception.training.preparation import open_dataset
from inception.training.problem import problem_of
from slim.nets import nets_factory
from terngrad.training import checkpoints

STEPS = 3


@pytest.mark.slow
def test_the_stream_has_the_batches_of_each_worker_of_a_training(digits):
    shared = ("--net=lenet", "--dataset=mnist", f"--data_dir={digits}", "--batch_size=4")
    command = [sys.executable, "-m", "benchmarks.ddp.batch_stream", *shared]
    command += [f"--max_steps={STEPS}", "--task_id=1"]
    found = subprocess.run(command, check=True, capture_output=True).stdout
    options = StreamOptions(
        net="lenet", dataset="mnist", data_dir=str(digits), batch_size=4, max_steps=STEPS
    )
    config = options.config()
    batches = training_batches(config, problem_of(config), open_dataset(config), 0, 1, 2)
    first = batches.take(STEPS)
    wanted = b"".join(part.numpy().tobytes() for batch in first for part in batch)
    assert found == wanted
    assert len(found) == STEPS * 4 * (28 * 28 * 4 + 4)


def test_results_are_read_as_those_of_the_suite(tmp_path, monkeypatch):
    """A stand-in for torch's processes gives the initial weights back, moved by 1."""

    class Network:
        addresses, interface = ("host:1", "host:2"), "eth0"

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def run_programs(self, commands, timeout):
            folder = next(
                each.partition("=")[2] for each in commands[0] if each.startswith("--output_dir=")
            )
            assert [f"--task_id={i}" in each for i, each in enumerate(commands)] == [True, True]
            moved = {name: value + 1 for name, value in np.load(f"{folder}/initial.npz").items()}
            np.savez(f"{folder}/20.npz", **moved)
            line = {
                "step": 10,
                "entropy_loss": 2.0,
                "reg_loss": 0.5,
                "bytes_sent": 100,
                "secs": 0.5,
            }
            with open(f"{folder}/figures.jsonl", "w") as file:
                file.write(json.dumps(line) + "\n")

    monkeypatch.setattr(train.host_network, "network", lambda size: Network())
    monkeypatch.setattr(train, "_num_classes", lambda options: 10)
    train.main(
        train.Options(torch_python="python3", train_dir=str(tmp_path), seed=7, batch_size=64)
    )
    scalars = read_scalars(str(tmp_path))
    assert scalars["losses/total_loss"].values == [2.5]
    assert scalars["examples_per_sec"].values == [128]
    assert scalars["bits_per_parameter"].values == [pytest.approx(8 * 100 / 1_068_298)]
    weights = nets_factory.named_variables(
        nets_factory.build_net("cifar10_alexnet", num_classes=10, seed=7)
    )
    before = {name: variable.numpy() for name, variable in weights.items()}
    checkpoints.restore_weights(checkpoints.at_step(str(tmp_path), 20), weights, averages=True)
    for name, value in before.items():
        tf.debugging.assert_equal(weights[name], value + 1)


@pytest.mark.parametrize(
    ("flags", "text"),
    [({}, "--torch_python"), ({"torch_python": "python3", "net": "cifarnet"}, "--net=cifarnet")],
)
def test_what_cannot_be_trained_is_refused(flags, text):
    with pytest.raises(ValueError, match=text):
        train.Options(**flags)
