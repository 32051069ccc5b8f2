"""setup.sh installs once, into an environment that it finds or makes."""

import os
import pathlib
import shutil
import subprocess

import pytest

_REPO = pathlib.Path(__file__).parents[1]


def _run(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["bash", _REPO / "scripts/setup.sh", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def venv(tmp_path) -> pathlib.Path:
    """Returns an environment whose Python only records its arguments, in the file `calls`."""
    folder = tmp_path / "my venv"
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin/python"
    python.write_text(f'#!/bin/sh\n[ "$1" = -V ] || echo "$@" >> "{folder}/calls"\n')
    python.chmod(0o755)
    shutil.copy(python, folder / "bin/pip")
    return folder


def _installs(venv: pathlib.Path, *arguments: str) -> int:
    """Runs setup.sh; returns how many installations it has made in the environment so far."""
    result = _run(*arguments, TERNGRAD_VENV=str(venv), PATH=os.environ["PATH"])
    assert result.returncode == 0, result.stderr
    return (venv / "calls").read_text().count("pip install")


def test_a_second_run_installs_nothing(venv):
    assert [_installs(venv) for _ in range(2)] == [1, 1]


def test_each_run_compiles_what_has_changed_since_the_last(venv):
    for _ in range(2):
        _installs(venv)
    assert (venv / "calls").read_text().count("-m terngrad.ops.build --if-needed") == 2


def test_the_test_tools_are_added_and_bring_the_rest_with_them(venv):
    assert _installs(venv, "dev") == 1
    assert _installs(venv) == 1
    assert ",dev]" in (venv / "calls").read_text()


def test_the_device_may_be_named_where_this_machine_has_another(venv):
    result = _run("mpi", TERNGRAD_VENV=str(venv), PATH=os.environ["PATH"], TERNGRAD_DEVICE="gpu")
    assert result.returncode == 0, result.stderr
    assert "[gpu,mpi]" in (venv / "calls").read_text()
    assert _installs(venv, "sweep") == 2  # for the same device, although it is not named again
    assert "[gpu,sweep]" in (venv / "calls").read_text()


@pytest.mark.parametrize(
    ("arguments", "device", "message"),
    [
        (["develop"], "", "takes dev, docs, mpi, spark, sweep or nothing, got 'develop'"),
        (["dev", "docs"], "", "takes dev, docs, mpi, spark, sweep or nothing, got 'dev docs'"),
        ([], "tpu", "TERNGRAD_DEVICE must be cpu or gpu, got 'tpu'"),
    ],
)
def test_words_that_name_no_extra_are_refused(venv, arguments, device, message):
    environment = {"TERNGRAD_VENV": str(venv), "PATH": os.environ["PATH"]}
    result = _run(*arguments, TERNGRAD_DEVICE=device, **environment)
    assert (result.returncode, result.stderr) == (1, f"setup.sh: {message}\n")
    assert not (venv / "calls").exists()


def test_an_environment_whose_python_was_removed_is_named(venv):
    (venv / "bin/python").unlink()
    (venv / "bin/python").symlink_to(venv / "removed")
    result = _run(TERNGRAD_VENV=str(venv), PATH=os.environ["PATH"])
    assert result.returncode == 1
    assert result.stderr.startswith(f"setup.sh: the Python of {venv} is gone: remove this folder")


def test_an_environment_may_be_named_from_the_present_folder(venv, monkeypatch):
    monkeypatch.chdir(venv.parent)
    assert _run(TERNGRAD_VENV=venv.name, PATH=os.environ["PATH"]).returncode == 0
    assert (
        f"into {venv} ..." in _run("docs", TERNGRAD_VENV=venv.name, PATH=os.environ["PATH"]).stdout
    )


def test_an_installation_that_fails_is_made_again(venv):
    python = venv / "bin/python"
    works = python.read_text()
    python.write_text("#!/bin/sh\nexit 3\n")
    failed = _run(TERNGRAD_VENV=str(venv), PATH=os.environ["PATH"])
    assert failed.returncode == 3
    python.write_text(works)
    assert _installs(venv) == 1


def test_a_missing_python_is_named_with_the_command_that_installs_it(tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("bash", "dirname", "basename", "g++"):
        (tools / tool).symlink_to(shutil.which(tool) or "/bin/true")
    result = _run(TERNGRAD_VENV=str(tmp_path / "venv"), PATH=str(tools))
    assert result.returncode == 1
    assert result.stderr == (
        "setup.sh: needs Python 3.10 to 3.13 with venv; "
        "on Debian or Ubuntu: sudo apt-get install -y python3-venv\n"
    )
