"""The suite's programs inside Spark: on records and on rows, also after an executor is lost."""

import io
import os
import re
import signal
import sys
import threading
import types
from pathlib import Path

import pyarrow
import pytest
from PIL import Image

from inception import app
from inception.on_spark.program import run_program, write_records
from inception.testing.runs import (
    assert_equal_parameters,
    flags_of,
    paced_flags_of,
    parameters,
    train,
)
from slim.datasets import mnist
from terngrad.spark.cluster import InputMode, run
from terngrad.spark.context import Context
from terngrad.testing import spark as sparks

SLOW_STEPS = 60


@pytest.fixture(scope="module")
def standalone(tmp_path_factory):
    """A session on a standalone master with two workers."""
    with (
        sparks.standalone(tmp_path_factory.mktemp("spark")) as master,
        sparks.session(master) as made,
    ):
        yield made


@pytest.fixture
def shown():
    return []


@pytest.mark.slow
def test_law_4_two_workers_inside_spark_give_the_bits_of_one_process(standalone, shown, tmp_path):
    settings = {"net": "mlp", "steps": 20}
    outside = train(1, tmp_path / "outside", batch_size=8, nodes=2, **settings)
    program, flags = flags_of(tmp_path / "inside", batch_size=4, **settings)
    run(standalone, run_program, [program, *flags], 2, show=shown.append).shutdown()
    assert_equal_parameters(outside, parameters(tmp_path / "inside", 20))
    assert any(line.startswith("[0] Finished training at step 20") for line in shown)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("ps", [0, 1])
def test_rows_of_spark_train_a_net(standalone, shown, tmp_path, ps):
    import tensorflow as tf

    images, labels = mnist.load(str(Path(mnist.__file__).parent / "mnist_sample"))["train"]
    rows = [
        (bytearray(tf.io.encode_png(image).numpy()), int(label))
        for image, label in zip(images[:200], labels[:200], strict=True)
    ]
    frame = standalone.createDataFrame(rows, "image binary, label int")
    program, flags = flags_of(tmp_path, net="mlp", batch_size=20, steps=60, bits=32)
    flags.remove("--benchmark_mode=True")
    cluster = run(
        standalone, run_program, [program, *flags], 2 - ps, ps, InputMode.SPARK, show=shown.append
    )
    cluster.train(frame)
    cluster.shutdown()
    assert any(line.startswith("[0] Finished training at step 60") for line in shown)
    losses = [float(x) for x in re.findall(r"entropy_loss = ([\d.]+)", "\n".join(shown))]
    assert losses[-1] < losses[0]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_law_8_an_executor_that_is_killed_changes_no_bit(standalone, shown, tmp_path):
    settings = {"net": "mlp", "batch_size": 2, "steps": SLOW_STEPS}
    undisturbed = train(1, tmp_path / "undisturbed", **settings)
    program, flags = paced_flags_of(tmp_path / "killed", "--save_iter=10", **settings)
    killed = threading.Event()

    def show(line):
        shown.append(line)
        if re.match(r"\[0\] .* step 30,", line) and not killed.is_set():
            killed.set()
            (first, *_) = [line for line in shown if line.startswith("[0] process ")]
            os.kill(_ancestor(int(first.split()[2]), b"CoarseGrainedExecutor"), signal.SIGKILL)

    run(standalone, _reporting, [program, *flags], 1, 1, show=show).shutdown()
    assert killed.is_set()
    assert sum(line.startswith("[0] process ") for line in shown) == 2
    assert_equal_parameters(undisturbed, parameters(tmp_path / "killed", SLOW_STEPS))


@pytest.mark.parametrize("label", [1.7, True, "3", None])
def test_a_label_that_is_no_integer_is_named_with_its_row(tmp_path, label):
    output = io.BytesIO()
    Image.new("L", (2, 2)).save(output, "PNG")
    rows = pyarrow.table({"image": [output.getvalue()] * 2, "label": [label] * 2})
    feed = types.SimpleNamespace(batches=lambda size: [rows])
    with pytest.raises(ValueError, match=rf"^row 0: label is {label!r}; allowed are integers$"):
        write_records(feed, tmp_path)


@pytest.fixture
def run_on_a_row(monkeypatch, tmp_path):
    """Returns a function that runs a program on one row, and returns the files that it reads."""
    own = tmp_path / "of_the_task"

    def run_it(program, flag, *arguments):
        output, found = io.BytesIO(), {}
        Image.new("L", (2, 2)).save(output, "PNG")
        rows = pyarrow.table({"image": [output.getvalue()], "label": [1]})
        own.mkdir(exist_ok=True)
        feed = types.SimpleNamespace(batches=lambda size: [rows])
        context = Context("worker", 0, feed=feed, folder=str(own))

        def look(*_, **__):
            folder = Path([w for w in sys.argv if w.startswith(f"--{flag}=")][-1].split("=")[1])
            assert own in folder.parents  # it is deleted however the program ends
            found.update((path.name, path.read_bytes()) for path in folder.iterdir())

        monkeypatch.setattr(app, "run", look)
        monkeypatch.setattr(sys, "argv", sys.argv)
        run_program([program, *arguments], context)
        return found

    return run_it


PROGRAMS = pytest.mark.parametrize(
    ("program", "flag"),
    [("inception.distributed_train", "data_dir"), ("slim.train_image_classifier", "dataset_dir")],
)


@PROGRAMS
def test_a_program_reads_the_rows_from_where_it_looks_for_records(run_on_a_row, program, flag):
    assert "train-00000-of-00001" in run_on_a_row(program, flag)


@PROGRAMS
@pytest.mark.parametrize("dataset_name", ["images", "imagenet"])
def test_rows_have_the_classes_of_the_folder_that_the_flags_name(
    run_on_a_row, tmp_path, program, flag, dataset_name
):
    (tmp_path / "labels.txt").write_text("0:rose\n1:tulip\n")
    names = [f"--dataset_name={dataset_name}", f"--{flag}={tmp_path}"]
    assert run_on_a_row(program, flag, *names)["labels.txt"] == b"0:rose\n1:tulip\n"


@PROGRAMS
def test_law_10_rows_without_names_for_their_classes_are_refused(
    run_on_a_row, tmp_path, program, flag
):
    named = f"--{flag}={tmp_path}"
    why = r"must name a folder with labels\.txt: data set images has its classes there"
    for flags, value in (([named], tmp_path), ([], "")):
        with pytest.raises(ValueError, match=f"^flag --{flag}={value}: {why}$"):
            run_on_a_row(program, flag, "--dataset_name=images", *flags)


def _reporting(arguments, context):
    print(f"process {os.getpid()}")
    run_program(arguments, context)


def _ancestor(pid: int, word: bytes) -> int:
    while word not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid
