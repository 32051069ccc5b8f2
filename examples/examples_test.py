"""Each example trains alone, without the lines for several workers, and on two workers."""

import gzip
import importlib
import re
import shutil
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from terngrad.testing.processes import finished, launch_environments

_FOLDER = Path(__file__).parent
_OTHERS = ("data", "examples_test")
_PROGRAMS = sorted(path.stem for path in _FOLDER.glob("*.py") if path.stem not in _OTHERS)
_SMALL = ("--train_size=131", "--test_size=60", "--epochs=1", "--batch_size=16")


def plain(text):
    """Returns the program as it was before it was distributed, and the number of lines added."""
    lines = text.splitlines(keepends=True)
    kept = [line for line in lines if "terngrad" not in line and "group." not in line]
    return "".join(kept), len(lines) - len(kept)


def accuracy(output, status):
    assert status == 0, output
    (line,) = (line for line in output.splitlines() if line.startswith("accuracy "))
    return float(line.split()[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "custom_train_step" else pytest.mark.exhaustive)
        for name in _PROGRAMS
    ],
)
def test_the_example_runs_alone_and_on_two_workers(tmp_path, name):
    text, _ = plain((_FOLDER / f"{name}.py").read_text())
    (tmp_path / f"{name}.py").write_text(text)
    shutil.copy(_FOLDER / "data.py", tmp_path)
    envs = [{"PYTHONPATH": str(_FOLDER), **role} for role in launch_environments(2)]
    envs.append({"PYTHONPATH": str(tmp_path)})
    program = [sys.executable, "-m", name, *_SMALL]
    chief, other, alone = (accuracy(*each) for each in finished([program] * 3, envs))
    assert chief == other
    assert 0 <= alone <= 1


@pytest.mark.parametrize("name", _PROGRAMS)
def test_several_workers_take_five_more_lines(name):
    assert plain((_FOLDER / f"{name}.py").read_text())[1] == 5


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_launcher_starts_an_example():
    program = [str(_FOLDER / "mnist_convnet.py"), *_SMALL]
    command = [sys.executable, "-m", "terngrad.launch", "-n", "2", *program]
    ((output, status),) = finished([command], {"PYTHONPATH": str(_FOLDER.parent)})
    assert status == 0, output
    chief, other = re.findall(r"^\[[01]\] accuracy (\S+)", output, re.MULTILINE)
    assert chief == other


def test_there_are_examples_of_all_kinds():
    assert len(_PROGRAMS) >= 7


@pytest.fixture
def data(monkeypatch):
    monkeypatch.syspath_prepend(str(_FOLDER))
    yield importlib.import_module("data")
    sys.modules.pop("data")


def test_files_of_mnist_may_be_plain(data, tmp_path):
    sample = _FOLDER.parent / "slim/datasets/mnist_sample"
    for path in sample.glob("*.gz"):
        (tmp_path / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    gzipped, plain_files = (data.mnist(str(folder), 20, 10) for folder in (sample, tmp_path))
    for split in (0, 1):
        np.testing.assert_array_equal(gzipped[split][0], plain_files[split][0])
        np.testing.assert_array_equal(gzipped[split][1], plain_files[split][1])


def test_data_that_cannot_be_read_is_named_in_one_line(data, tmp_path):
    (tmp_path / "no.tar.gz").write_bytes(b"no archive")
    with tarfile.open(tmp_path / "empty.tar.gz", "w:gz"):
        pass
    (tmp_path / "short").mkdir()
    (tmp_path / "short/train-images-idx3-ubyte").touch()
    with pytest.raises(SystemExit, match=r"^--data: .*train-images-idx3-ubyte: "):
        data.mnist(str(tmp_path / "short"), 1, 1)
    with pytest.raises(SystemExit, match=r"^--data: .*No such file.*train-images-idx3-ubyte\.gz"):
        data.mnist(str(tmp_path), 1, 1)
    for path, why in ((tmp_path, "Is a directory"), (tmp_path / "no.tar.gz", "not a gzip file")):
        with pytest.raises(SystemExit, match=f"^--data: .*{why}"):
            data.cifar10(str(path), 1, 1)
    with pytest.raises(SystemExit, match=r"empty\.tar\.gz has no five batches"):
        data.cifar10(str(tmp_path / "empty.tar.gz"), 1, 1)
