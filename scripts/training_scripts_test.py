"""The training scripts run from records to an evaluated model, with few steps."""

import pathlib
import re
import signal
import sys

import numpy as np
import pytest

from slim.datasets import cifar10, convert, mnist
from terngrad.testing.processes import Started

_REPO = pathlib.Path(__file__).parents[1]
_IMAGES = 512  # of each split
_LENET = "scripts/run_multi_gpus_lenet.sh"
_SHORT = {"MAX_STEPS": "20", "SAVE_ITER": "10", "EVAL_INTERVAL_SECS": "0.5"}
_PRECISION = re.compile(r"precision @ 1 = (0\.\d+) recall @ 5 = 0\.\d+ \[\d+ examples\]")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def digits(made_once) -> pathlib.Path:
    """Records of some of the repository's digits, in a folder whose name has a space."""

    def fill(folder: pathlib.Path) -> None:
        for split, (images, labels) in mnist.load(f"{_REPO}/slim/datasets/mnist_sample").items():
            path = str(folder / f"{split}-mnist.tfrecord")
            convert.write_records({path: np.arange(_IMAGES)}, images, labels, mnist.INFO)

    return made_once("some digits", fill)


@pytest.fixture(scope="session")
def noise(tmp_path_factory) -> pathlib.Path:
    """Makes records that look like CIFAR-10's."""
    folder = str(tmp_path_factory.mktemp("cifar10"))
    images = np.random.default_rng(1).integers(0, 256, [256, 32, 32, 3], dtype=np.uint8)
    for split in cifar10.INFO.splits:
        paths = convert.record_paths(folder, "cifar10", split, None)
        shares = convert.spread(len(images), paths)
        convert.write_records(shares, images, np.arange(256) % 10, cifar10.INFO)
    return pathlib.Path(folder)


def _started(script: str, **settings) -> Started:
    env = {"TERNGRAD_VENV": sys.prefix} | {key: str(value) for key, value in settings.items()}
    return Started(["bash", str(_REPO / script)], env, in_own_group=True)


def _run(script: str, **settings) -> tuple[int, str]:
    with _started(script, **settings) as run:
        return run.finish(), run.output


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


def test_the_cifar10_net_is_trained_and_evaluated_with_settings_of_the_environment(noise, tmp_path):
    settings = {"DATA_DIR": noise, "ROOT_WORKSPACE": tmp_path, "GRAD_BITS": 32} | _SHORT
    code, output = _run("scripts/run_multi_gpus_cifar10.sh", **settings)
    assert code == 0, output
    assert _PRECISION.search(output.splitlines()[-1])
    (run,) = (tmp_path / "cifar10_training_data").iterdir()
    assert run.name.startswith("cifar10_cifar10_alexnet_24_adam_32_0.0002_2.5_0_0.004_0.9_1_128_2_")


def test_a_signal_ends_training_with_a_checkpoint_and_evaluation(digits, tmp_path):
    with _started(_LENET, DATA_DIR=digits, ROOT_WORKSPACE=tmp_path) as run:
        run.wait_for("step 10,")
        run.process.send_signal(signal.SIGINT)
        run.finish()
        assert not run.outlived()
    assert list(tmp_path.glob("mnist_training_data/*/model.ckpt-*.index"))


def test_a_training_that_fails_gives_its_exit_code_and_ends_the_evaluation(digits, tmp_path):
    settings = {"DATA_DIR": digits, "ROOT_WORKSPACE": tmp_path, "OPTIMIZER": "newton"}
    with _started(_LENET, **settings) as run:
        assert run.finish() == 1, run.output
        assert "newton" in run.output
        assert not run.outlived()


def test_missing_records_are_named_with_the_command_that_makes_them(tmp_path):
    code, output = _run(_LENET, DATA_DIR=tmp_path / "none", ROOT_WORKSPACE=tmp_path / "results")
    assert code == 1
    assert f"no records in {tmp_path}/none; make them with: " in output
    assert "slim.download_and_convert_data --dataset_name mnist" in output
    assert len(output.splitlines()) == 1
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("script", "records"),
    [("train_lenet_on_mnist", "digits"), ("train_cifarnet_on_cifar10", "noise")],
)
def test_the_recipes_of_tf_slim_run_to_an_evaluation(script, records, tmp_path, request):
    settings = {"DATASET_DIR": request.getfixturevalue(records), "TRAIN_DIR": tmp_path}
    code, output = _run(f"slim/scripts/{script}.sh", MAX_STEPS=5, **settings)
    assert code == 0, output
    assert (tmp_path / "model.ckpt-5.index").exists()
    assert _PRECISION.search(output)
