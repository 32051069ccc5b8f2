import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest

from slim.conversion import convert
from slim.datasets import mnist
from slim.nets import nets_factory
from terngrad.testing import forked
from terngrad.testing.limits import HANG_SECS
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
        path = str(folder / f"{split}-mnist.tfrecord")
        convert.write_records({path: np.arange(64)}, images, labels, mnist.INFO)
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


@pytest.mark.slow
@pytest.mark.exhaustive
def test_it_trains_under_mpirun(data_dir, tmp_path):
    mpirun = os.path.join(os.path.dirname(sys.executable), "mpirun")
    if importlib.util.find_spec("mpi4py") is None or not os.path.exists(mpirun):
        pytest.skip("mpi4py and mpich are not installed: pip install '.[mpi]'")
    program = [sys.executable, "-m", "slim.train_image_classifier", "--variable_update=mpi"]
    problem = ["--dataset_name=mnist", "--model_name=mlp", f"--dataset_dir={data_dir}"]
    length = ["--batch_size=8", "--max_number_of_steps=4", f"--train_dir={tmp_path}"]
    done = subprocess.run(
        [mpirun, "-np", "2", *program, *problem, *length],
        capture_output=True,
        text=True,
        timeout=HANG_SECS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "model.ckpt-4.index").exists()
    assert "2 nodes x 8 images" in done.stdout


def weights(path) -> dict[str, np.ndarray]:
    """Returns the weights of mlp in a checkpoint, by name."""
    model = nets_factory.build_net("mlp", num_classes=10)
    variables = nets_factory.named_variables(model)
    checkpoints.restore_weights(str(path), variables, averages=False)
    return {name: variable.numpy() for name, variable in variables.items()}


@pytest.mark.slow
def test_an_offset_that_a_label_does_not_fit_is_one_line(data_dir, tmp_path):
    done = run(
        "train_image_classifier",
        *(f"--dataset_dir={data_dir}", f"--train_dir={tmp_path}", "--labels_offset=1"),
        *("--label_smoothing=0.1", "--batch_size=16", "--max_number_of_steps=4"),
    )
    assert done.returncode == 1
    assert done.stderr == (
        f"train_image_classifier: {data_dir}/train-mnist.tfrecord: record 0 at byte 0 has label 0; "
        "with labels_offset 1 it must be 1 to 9\n"
    )
