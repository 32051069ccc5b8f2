"""Fixtures for the tests of the benchmarks: a small data set and a way to run a program."""

import json
import runpy
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from slim.testing import write_digits
from terngrad.testing import forked

Run = Callable[..., dict]


@pytest.fixture(scope="session")
def digits(tmp_path_factory) -> Path:
    """Returns a folder with records of the first digits of the repository's sample."""
    folder = tmp_path_factory.mktemp("digits")
    write_digits(folder, count=256)
    return folder


@pytest.fixture
def run(tmp_path, monkeypatch) -> Run:
    """Runs a benchmark as `python -m` does and returns its figures.

    The programs that it runs to their end are forked from a process that has imported TensorFlow.
    """
    subprocess_run = subprocess.run

    def run_forked(command: Sequence[str], **settings: object) -> subprocess.CompletedProcess:
        if command[:2] != [sys.executable, "-m"] or settings.keys() != {"check"}:
            return subprocess_run(command, **settings)
        done = forked.run(command)
        print(done.stdout, end="")
        print(done.stderr, end="", file=sys.stderr)
        if settings["check"]:
            done.check_returncode()
        return done

    monkeypatch.setattr(subprocess, "run", run_forked)

    def run_program(name: str, *arguments: str) -> dict:
        file = tmp_path / "figures.json"
        monkeypatch.setattr("sys.argv", [name, *arguments, "--json", str(file)])
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
        return json.loads(file.read_text())

    return run_program
