"""Fixtures for the tests of the benchmarks: a small data set and a way to run a program."""

import json
import os
import runpy
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from slim.conversion import convert
from slim.datasets import mnist

_IMAGES = 256  # in each split

Run = Callable[..., dict]


@pytest.fixture(scope="session")
def digits(tmp_path_factory) -> Path:
    """Returns a folder with records of the first digits of the repository's sample."""
    folder = tmp_path_factory.mktemp("digits")
    sample = Path(mnist.__file__).parent / "mnist_sample"
    for split, (images, labels) in mnist.load(str(sample)).items():
        path = str(folder / f"{split}-mnist.tfrecord")
        convert.write_records({path: np.arange(_IMAGES)}, images, labels, mnist.INFO)
    return folder


@pytest.fixture
def run(tmp_path, monkeypatch) -> Run:
    """Runs a benchmark as `python -m` does and returns its figures."""

    def run_program(name: str, *arguments: str) -> dict:
        file = tmp_path / "figures.json"
        monkeypatch.setattr("sys.argv", [name, *arguments, "--json", str(file)])
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
        return json.loads(file.read_text())

    return run_program


@pytest.fixture(scope="session")
def has_networks() -> None:
    """Skips tests that need several hosts if this machine cannot simulate them."""
    if not (shutil.which("ip") and shutil.which("tc")):
        pytest.skip("ip or tc (iproute2) is not installed")
    trial = f"trial{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", trial], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "delete", trial], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("network namespaces need root")
