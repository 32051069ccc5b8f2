"""TF-Slim's programs train, evaluate and fine-tune a net."""

import subprocess
import sys

import numpy as np
import pytest

from slim.nets import nets_factory
from slim.testing import write_mnist_records
from terngrad.testing import forked
from terngrad.training import checkpoints


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """A folder with two splits of 64 images, whose brightness depends on the class."""
    folder = tmp_path_factory.mktemp("data")
    labels = np.arange(64) % 10
    images = np.zeros((64, 28, 28, 1), np.uint8) + (25 * labels)[:, None, None, None].astype(
        np.uint8
    )
    for split in ("train", "test"):
        write_mnist_records(folder, split, images, labels)
    return str(folder)


def run(program: str, *arguments: str) -> subprocess.CompletedProcess:
    """Runs one of slim's programs on the small data set."""
    command = [sys.executable, "-m", f"slim.{program}", "--dataset_name=mnist", "--model_name=mlp"]
    return forked.run([*command, *arguments])


@pytest.mark.slow
def test_a_net_is_trained_evaluated_and_tuned(data_dir, tmp_path):
    data, trained, tuned = f"--dataset_dir={data_dir}", tmp_path / "trained", tmp_path / "tuned"
    start = ["--optimizer=sgd", "--batch_size=16", "--max_number_of_steps=4"]
    done = run("train_image_classifier", data, *start, f"--train_dir={trained}", "--num_clones=2")
    assert done.returncode == 0, done.stderr
    assert (trained / "model.ckpt-4.index").exists()

    done = run(
        "eval_image_classifier", data, f"--checkpoint_path={trained}", f"--eval_dir={trained}"
    )
    assert done.returncode == 0, done.stderr
    assert "at step=4." in done.stdout and "[64 examples]" in done.stdout

    more = ["--trainable_scopes=logits", f"--checkpoint_path={trained}", f"--train_dir={tuned}"]
    done = run("train_image_classifier", data, *start, *more)
    assert done.returncode == 0, done.stderr
    assert f"Succesfully loaded model from {trained / 'model.ckpt-4'} to start with." in done.stdout
    before, after = (weights(folder / "model.ckpt-4") for folder in (trained, tuned))
    changed = {name for name in before if (before[name] != after[name]).any()}
    assert changed == {"logits/kernel", "logits/bias"}


def weights(path) -> dict[str, np.ndarray]:
    """Returns the weights of mlp in a checkpoint, by name."""
    model = nets_factory.build_net("mlp", num_classes=10)
    variables = nets_factory.named_variables(model)
    checkpoints.restore_weights(str(path), variables, averages=False)
    return {name: variable.numpy() for name, variable in variables.items()}
