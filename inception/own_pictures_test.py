"""A user's own pictures: convert, train, fine-tune, evaluate, label one picture, and export."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from inception.testing.runs import run_program
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.processes import Started

NET = ("--dataset_name=images", "--net=cifarnet")

pytestmark = pytest.mark.slow


def ended(module: str, *arguments: object) -> tuple[int, str]:
    """Runs a program to its end; returns its exit status and what it printed."""
    with Started([sys.executable, "-m", module, *map(str, arguments)]) as program:
        return program.finish(), program.output


def run(module: str, *arguments: object) -> str:
    """Runs a program that must succeed; returns what it printed."""
    status, printed = ended(module, *arguments)
    assert status == 0, printed
    return printed


def draw(folder: Path, classes: dict[str, int], count: int) -> None:
    """Writes pictures of several sizes, whose class decides which channel is bright."""
    rng = np.random.default_rng(len(str(folder)))
    for name, channel in classes.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = rng.integers(0, 100, (36 + number, 48 - number, 3), np.uint8)
            pixels[..., channel] += 150
            Image.fromarray(pixels).save(folder / name / f"{number}.jpg")


def converted(folder: Path, classes: dict[str, int]) -> Path:
    """Returns the folder of the records of drawn pictures."""
    for split, count in (("train", 12), ("validation", 4)):
        draw(folder / split, classes, count)
    run(
        "inception.data.build_image_data",
        f"--train_directory={folder}/train",
        f"--validation_directory={folder}/validation",
        f"--output_directory={folder}/records",
    )
    return folder / "records"


def train(records: Path, train_dir: Path, steps: int, *flags: object) -> str:
    return run(
        "inception.flowers_train",
        *NET,
        f"--data_dir={records}",
        f"--train_dir={train_dir}",
        f"--max_steps={steps}",
        "--batch_size=8",
        "--optimizer=adam",
        "--initial_learning_rate=0.001",
        "--moving_average_decay=0.5",
        *flags,
    )


@pytest.fixture(scope="module", name="red_or_green")
def _red_or_green(tmp_path_factory) -> tuple[Path, Path]:
    """Pictures of two classes with their records, and a net that knows them."""
    folder = tmp_path_factory.mktemp("red or green")
    records = converted(folder, {"red": 0, "green": 1})
    train(records, folder / "train_dir", 30)
    return folder, folder / "train_dir"


def test_a_net_learns_the_classes_and_is_evaluated(red_or_green):
    folder, train_dir = red_or_green
    printed = run(
        "inception.flowers_eval",
        *NET,
        f"--data_dir={folder}/records",
        f"--checkpoint_dir={train_dir}",
        f"--eval_dir={folder}/eval",
        "--run_once",
    )
    precision = float(re.search(r"precision @ 1 = (\S+) .*\[8 examples\]", printed)[1])
    assert precision > 0.9


@pytest.mark.parametrize("program", ["inception.distributed_train", "slim.train_image_classifier"])
def test_two_workers_train_on_them(red_or_green, tmp_path, program):
    records = f"{red_or_green[0]}/records"
    flags = [*NET, f"--data_dir={records}", "--max_steps=3"]
    if program.startswith("slim"):
        names = ["--dataset_name=images", "--model_name=cifarnet"]
        flags = [*names, f"--dataset_dir={records}", "--max_number_of_steps=3"]
    shared = [f"--train_dir={tmp_path}", "--batch_size=4", "--grad_bits=1"]
    run("inception.testing.forked_launch", 2, program, *flags, *shared)
    assert (tmp_path / "model.ckpt-3.index").exists()
    assert "red" in (tmp_path / "labels.txt").read_text()


@pytest.fixture(name="label")
def _label(capsys):
    """Labels a picture in this process; returns the lines."""

    def label(train_dir: Path, image: Path) -> list[str]:
        capsys.readouterr()
        run_program("inception.label_image", f"--checkpoint_dir={train_dir}", f"--image={image}")
        return capsys.readouterr().out.splitlines()

    return label


def test_a_picture_file_is_labelled(red_or_green, label):
    folder, train_dir = red_or_green
    for name in ("red", "green"):
        printed = label(train_dir, folder / "validation" / name / "2.jpg")
        probability, best = printed[0].split(" ", 1)
        assert best == name and float(probability) > 0.5
        assert len(printed) == 3  # with the background


def test_a_resumed_training_names_what_it_ignores(red_or_green, tmp_path):
    folder, train_dir = red_or_green
    records, copy = folder / "records", shutil.copytree(train_dir, tmp_path / "copy")
    printed = train(records, copy, 31, f"--pretrained_model_checkpoint_path={train_dir}")
    assert (
        f"--pretrained_model_checkpoint_path: has no effect with {copy}/model.ckpt-30." in printed
    )
    arguments = (*NET, f"--data_dir={records}", f"--train_dir={copy}", "--trainable_scopes=logits")
    status, printed = ended(
        "inception.flowers_train", *arguments, "--max_steps=40", "--batch_size=8"
    )
    assert status == 1
    assert (
        "--trainable_scopes=logits" in printed and "model.ckpt-31 trains all variables" in printed
    )


@pytest.mark.parametrize("format_name", ["keras", "savedmodel"])
def test_an_export_replaces_nothing_but_an_export(red_or_green, tmp_path, format_name):
    _, train_dir = red_or_green
    output = tmp_path / "pictures.keras"
    output.mkdir()
    (output / "rose.jpg").write_text("a picture")
    arguments = (f"--checkpoint_dir={train_dir}", f"--format={format_name}", "--overwrite")
    with pytest.raises(SystemExit, match=f"exists, and is no {format_name} export"):
        run_program("inception.export", *arguments, f"--output={output}")
    assert (output / "rose.jpg").exists()


LOADING = """
import sys, numpy as np
sys.modules.update(dict.fromkeys(("slim", "terngrad", "inception")))  # cannot be imported
import keras
import tensorflow as tf
image, keras_path, saved_path, preprocessed = sys.argv[1:]
net = tf.saved_model.load(saved_path)
models = {"keras": keras.models.load_model(keras_path), "savedmodel": net.serve}
for name, model in models.items():
    pixels = tf.io.decode_jpeg(tf.io.read_file(image))
    if name != preprocessed:
        pixels = tf.image.resize_with_crop_or_pad(pixels, 32, 32)
        pixels = tf.image.per_image_standardization(pixels)
    print(*np.asarray(tf.nn.softmax(model(pixels[None])))[0])
"""


@pytest.mark.parametrize(
    "preprocessed", ["keras", pytest.param("savedmodel", marks=pytest.mark.exhaustive)]
)
def test_plain_keras_and_tensorflow_compute_what_the_suite_does(
    red_or_green, tmp_path, preprocessed, label
):
    """One of the two exports preprocesses pictures itself."""
    folder, train_dir = red_or_green
    outputs = {"keras": tmp_path / "net.keras", "savedmodel": tmp_path / "net"}
    for format_name, output in outputs.items():
        run_program(
            "inception.export",
            f"--checkpoint_dir={train_dir}",
            f"--format={format_name}",
            f"--output={output}",
            f"--with_preprocessing={format_name == preprocessed}",
        )
    for labels in (tmp_path / "net.labels.txt", tmp_path / "net" / "labels.txt"):
        assert labels.read_text() == "0:background\n1:green\n2:red\n"
    image = folder / "validation" / "red" / "2.jpg"
    done = subprocess.run(
        [sys.executable, "-I", "-c", LOADING, image, *outputs.values(), preprocessed],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANG_SECS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ours = [float(line.split()[0]) for line in label(train_dir, image)]
    for line in done.stdout.splitlines():
        theirs = sorted(map(float, line.split()), reverse=True)
        np.testing.assert_allclose(theirs, ours, atol=2e-4)
    assert done.stdout.count("\n") == 2
