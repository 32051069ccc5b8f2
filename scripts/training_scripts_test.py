"""The training scripts run from records to an evaluated model, with few steps."""

import pathlib
import re
import signal
import sys

import numpy as np
import pytest

from slim.conversion import convert
from slim.datasets import cifar10, imagenet, images, mnist
from slim.nets import nets_factory
from slim.testing import write_pictures
from terngrad.testing.processes import Started

_REPO = pathlib.Path(__file__).parents[1]
_IMAGES = 512  # of each split
_LENET = "scripts/run_multi_gpus_lenet.sh"
_SHORT = {"MAX_STEPS": "20", "SAVE_ITER": "10", "EVAL_INTERVAL_SECS": "0.5"}
_PRECISION = re.compile(r"precision @ 1 = ([01]\.\d+) recall @ 5 = [01]\.\d+ \[\d+ examples\]")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def digits(made_once) -> pathlib.Path:
    """Records of some of the repository's digits, in a folder whose name has a space."""

    def fill(folder: pathlib.Path) -> None:
        for split, (digits, labels) in mnist.load(f"{_REPO}/slim/datasets/mnist_sample").items():
            path = str(folder / f"{split}-mnist.tfrecord")
            convert.write_records({path: np.arange(_IMAGES)}, digits, labels, mnist.INFO)

    return made_once("some digits", fill)


@pytest.fixture(scope="session")
def noise(tmp_path_factory) -> pathlib.Path:
    """Makes records that look like CIFAR-10's."""
    folder = str(tmp_path_factory.mktemp("cifar10"))
    images = np.random.default_rng(1).integers(0, 256, [256, 32, 32, 3], dtype=np.uint8)
    splits = {split: (images, np.arange(256) % 10) for split in cifar10.INFO.splits}
    convert.write(cifar10.INFO, splits, folder)
    return pathlib.Path(folder)


@pytest.fixture(scope="session")
def photographs(made_once) -> pathlib.Path:
    """Records of a few pictures of two of ImageNet's classes."""

    def fill(folder: pathlib.Path) -> None:
        classes = {"n01440764": 8, "n01443537": 8}
        for split in ("train", "validation"):
            write_pictures(folder / split, classes)
        splits = imagenet.load(str(folder))
        shards = {"train": 2, "validation": 1}
        convert.write(imagenet.INFO, splits, str(folder), num_shards=shards)

    return made_once("photographs", fill)


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
    ("script", "settings"),
    [
        ("alexnet", "32_momentum_1_0.01_2.5_0_0.0005_0.9_9217_256_2"),
        ("googlenet", "32_momentum_1_0.04_2.5_0_0.00001_0.9_1_128_2"),
        ("vggnet", "32_momentum_1_0.01_2.5_0_0.0005_0.9_1_256_2"),
    ],
)
def test_the_recipes_for_imagenet_train_and_evaluate(photographs, tmp_path, script, settings):
    # The recipes' own nets take minutes to compile.
    small = {"NET": "cifarnet", "IMAGE_SIZE": 32, "MAX_STEPS": 1, "SAVE_ITER": 1}
    code, output = _run(
        f"scripts/run_multi_gpus_{script}.sh",
        DATA_DIR=photographs,
        ROOT_WORKSPACE=tmp_path,
        EVAL_INTERVAL_SECS="0.5",
        **small,
    )
    assert code == 0, output
    assert _PRECISION.search(output.splitlines()[-1])
    (run,) = (tmp_path / "imagenet_training_data").iterdir()
    assert run.name.startswith(f"imagenet_cifarnet_{settings}_")


def test_large_batches_are_trained_under_mpirun_with_a_scaled_rate(photographs, tmp_path):
    if not (pathlib.Path(sys.executable).parent / "mpirun").exists():
        pytest.skip("mpi4py and mpich are not installed: pip install '.[mpi]'")
    settings = {"NET": "cifarnet", "IMAGE_SIZE": 32}
    settings |= {"TRAIN_BATCH_SIZE": 2, "MAX_STEPS": 1, "BASE_BATCH_SIZE": 1}
    with Started(
        ["bash", str(_REPO / "scripts/run_inception_resnet_v2.sh"), "2"],
        {"TERNGRAD_VENV": sys.prefix, "DATA_DIR": str(photographs), "TRAIN_DIR": str(tmp_path)}
        | {key: str(value) for key, value in settings.items()},
        in_own_group=True,
    ) as run:
        assert run.finish() == 0, run.output
        assert "0.09" in run.output  # 0.045 x sqrt(4 / 1)
    assert (tmp_path / "model.ckpt-1.index").exists()


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


def test_a_net_is_fine_tuned_in_two_stages(tmp_path):
    pictures = tmp_path / "pictures"
    for split in ("train", "validation"):
        write_pictures(pictures / split, {"rose": 6, "tulip": 6})
    splits = images.load(str(pictures))
    convert.write(
        images.INFO, splits, str(tmp_path / "data"), num_shards={"train": 1, "validation": 1}
    )
    common = {"DATASET_NAME": "images", "DATASET_DIR": tmp_path / "data", "BATCH_SIZE": 4}
    common |= {"IMAGE_SIZE": 32, "LAST_LAYER_STEPS": 2, "WHOLE_NET_STEPS": 2}
    common |= {"MODEL_NAME": "cifarnet", "LAST_LAYERS": "CifarNet/logits"}
    common |= {"WHOLE_NET_RATE": 0.001, "LR_DECAY_TYPE": "fixed"}
    model = nets_factory.build_net("cifarnet", num_classes=9, image_size=32)
    model.save_weights(tmp_path / "pretrained.weights.h5")
    weights = tmp_path / "pretrained.weights.h5"
    run = {"TRAIN_DIR": tmp_path / "run", "PRETRAINED_CHECKPOINT": weights}
    code, output = _run("slim/scripts/finetune.sh", **run, **common)
    assert code == 0, output
    assert "2 start afresh: logits/" in output
    assert len(_PRECISION.findall(output)) == 2
    assert (tmp_path / "run" / "all" / "model.ckpt-2.index").exists()


@pytest.mark.parametrize("net", ["inception_v1", "inception_v3", "resnet_v1_50"])
def test_the_scripts_name_the_published_weights_that_they_need(tmp_path, net):
    script = f"slim/scripts/finetune_{net}_on_flowers.sh"
    code, output = _run(script, TRAIN_DIR=tmp_path / "none")
    assert (code, len(output.splitlines())) == (1, 1)
    assert "set PRETRAINED_CHECKPOINT" in output and f"{net}_2016_08_28.tar.gz" in output
    assert not (tmp_path / "none").exists()


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
