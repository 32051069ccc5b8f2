"""The contents of the package's wheel."""

import fnmatch
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile

import pytest
import tensorflow as tf

from terngrad.gpu import kernels
from terngrad.ops import library
from terngrad.testing.limits import HANG_SECS

pytest.importorskip("setuptools")

_COMPILER = """#!/usr/bin/env bash
# A fake compiler: writes its last argument, the output.
echo compiled > "${@: -1}"
"""


_MESSAGES = """
from terngrad.service import messages
print(messages.__file__, messages.Header(step=3), end="")
"""
_GENERATED = ("*.so",)


def wheel_of(tmp_path, **environment):
    """Makes a wheel of the repository as it is before the set-up; returns its path."""
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns(".*", *_GENERATED, "__pycache__", "bazel-*", "results")
    shutil.copytree(library.ROOT, source, ignore=ignored)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "-w", str(tmp_path / "wheels"), str(source)],
        env=dict(os.environ, XDG_CACHE_HOME=str(tmp_path / "cache"), **environment),
        capture_output=True,
        text=True,
        timeout=HANG_SECS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (tmp_path / "wheels").iterdir()
    return wheel


def names_in(wheel):
    with zipfile.ZipFile(wheel) as file:
        return {name for name in file.namelist() if name.startswith("terngrad/")}


@pytest.mark.slow
def test_a_wheel_holds_the_library_where_it_is_looked_for(tmp_path):
    compiler = tmp_path / "g++"
    compiler.write_text(_COMPILER)
    compiler.chmod(0o755)
    names = names_in(wheel_of(tmp_path, CXX=str(compiler)))
    built = os.path.basename(library.path_for(tf.version.VERSION))
    assert f"terngrad/ops/{built}" in names
    assert f"terngrad/ops/{os.path.basename(library.arrays_path())}" in names
    assert {f"terngrad/cc/lib/{name}.h" for name in ("kernels", "simd/portable")} <= names
    assert set(kernels.sources()) <= names  # NVRTC compiles them where a GPU is
    assert not any(name.endswith("_test.cc") for name in names)
    assert not fnmatch.filter(names, "terngrad/cc/*/testing/*")


@pytest.fixture(scope="module", name="wheel")
def _wheel(tmp_path_factory):
    """A wheel without kernels."""
    return wheel_of(tmp_path_factory.mktemp("wheel"), TERNGRAD_WITHOUT_KERNELS="1")


@pytest.mark.slow
def test_a_wheel_without_kernels_holds_no_library_but_the_messages(tmp_path, wheel):
    names = names_in(wheel)
    assert "terngrad/ops/native.py" in names
    assert not any(name.endswith(".so") for name in names)
    installed = tmp_path / "installed"
    shutil.unpack_archive(wheel, installed, "zip")
    done = subprocess.run(
        [sys.executable, "-c", _MESSAGES],
        env=dict(os.environ, PYTHONPATH=str(installed)),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"{installed}/terngrad/service/messages.py step: 3\n", done.stderr


@pytest.mark.slow
def test_a_wheel_brings_the_programs_as_commands_and_types(tmp_path, wheel):
    fresh = tmp_path / "fresh"
    venv.create(fresh, with_pip=False)
    python = str(fresh / "bin" / "python")
    install = ["-m", "pip", "--python", python, "install", "--no-deps", "--no-index"]
    done = subprocess.run(
        [sys.executable, *install, str(wheel)],
        env=dict(os.environ, PYTHONPATH=""),  # else what lies there counts as installed
        capture_output=True,
        text=True,
        check=False,
    )
    typed = list(fresh.glob("lib/python*/site-packages/terngrad/py.typed"))
    assert done.returncode == 0 and typed, done.stdout + done.stderr
    # The packages that it needs; .pth files do not count there.
    environment = dict(os.environ, PYTHONPATH=sysconfig.get_path("purelib"))
    for name, arguments, status, text in (
        ("terngrad-mnist-train", ["--help"], 0, "--grad_bits"),
        ("terngrad-mnist-train", ["--train_dir="], 1, "mnist_train: flag --train_dir=: must name"),
        ("terngrad-train-image-classifier", ["--help"], 0, "--model_name"),
        ("terngrad-launch", [], 1, "launch: needs the number of workers"),
    ):
        done = subprocess.run(
            [fresh / "bin" / name, *arguments],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == status, done.stderr
        assert text in done.stdout + done.stderr


@pytest.mark.slow
def test_a_compiler_that_fails_costs_the_kernels_not_the_package(tmp_path):
    names = names_in(wheel_of(tmp_path, CXX=shutil.which("false")))
    assert "terngrad/ops/native.py" in names
    assert not any(name.endswith(".so") for name in names)
