"""service.proto is compiled once after each change; a missing result is reported early."""

import subprocess
import sys
from pathlib import Path

import pytest

from terngrad.service import build, compiled

_PS_FLAGS = ["--job_name=ps", "--ps_hosts=localhost:2", "--worker_hosts=localhost:3"]
_WITHOUT_MODULE = """
import sys
from inception import programs
from terngrad.service import compiled

compiled.MODULE = "a_descriptor_that_is_missing"
sys.modules["tensorflow"] = None  # an attempt to load it would be another error
programs.train_distributed("mnist", "", ["mnist_distributed_train", *sys.argv[1:]])
"""


def test_the_module_is_made_once_after_each_change(tmp_path, monkeypatch):
    proto = tmp_path / "service.proto"
    proto.write_text('syntax = "proto3"; message One { bool a = 1; }')
    for module in (build, compiled):
        monkeypatch.setattr(module, "PROTO", str(proto))
    path = Path(build.build(str(tmp_path)))
    first = path.stat().st_mtime_ns
    build.build(str(tmp_path))
    assert path.stat().st_mtime_ns == first
    proto.write_text('syntax = "proto3"; message Two { bool a = 1; }')
    build.build(str(tmp_path))
    text = path.read_text()
    assert "Two" in text and "One" not in text
    assert {file.name for file in tmp_path.iterdir()} == {path.name, "service.proto"}


def test_law_10_a_text_that_does_not_compile_is_named(tmp_path, monkeypatch):
    proto = tmp_path / "service.proto"
    proto.write_text("message {")
    for module in (build, compiled):
        monkeypatch.setattr(module, "PROTO", str(proto))
    with pytest.raises(build.BuildError, match=r"service\.proto cannot be compiled: .*proto:1"):
        build.build(str(tmp_path))
    assert [file.name for file in tmp_path.iterdir()] == ["service.proto"]


def test_law_10_a_missing_compiler_is_named(tmp_path):
    (tmp_path / "grpc_tools").mkdir()
    (tmp_path / "grpc_tools/__init__.py").touch()  # hides the one that is installed
    done = subprocess.run(
        [sys.executable, "-m", "terngrad.service.build"],
        env={"PYTHONPATH": f"{tmp_path}:{Path(build.FOLDER).parents[1]}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "build: grpcio-tools is not installed: pip install grpcio-tools\n"


def test_law_10_a_module_of_another_text_is_named(tmp_path, monkeypatch):
    proto = tmp_path / "service.proto"
    proto.write_text('syntax = "proto3";')
    monkeypatch.setattr(compiled, "PROTO", str(proto))
    why = "was made from another service.proto: run `python -m terngrad.service.build`"
    with pytest.raises(compiled.NotCompiledError, match=why):
        compiled.descriptor()


@pytest.mark.parametrize("job", ["ps", "worker"])
def test_law_10_a_program_without_the_module_ends_before_it_loads_tensorflow(job):
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_MODULE, *_PS_FLAGS, f"--job_name={job}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == (
        f"mnist_distributed_train: {compiled.FOLDER}/a_descriptor_that_is_missing.py is missing: "
        "run `python -m terngrad.service.build`\n"
    )
