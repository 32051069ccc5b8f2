"""install_horovod.sh builds Horovod once, and leaves nothing behind if that fails."""

import os
import pathlib
import subprocess

import pytest

from terngrad.testing.limits import HANG_SECS

_REPO = pathlib.Path(__file__).parents[1]
# A fake Python of an environment: records its commands and pretends to run them.
_PYTHON = r"""#!/bin/bash
here="$(dirname "$0")"
echo "$@" >> "${here}/calls"
case "$*" in
  *"import horovod"*) [[ -e "${here}/installed" ]] ;;
  *"--quiet download "*)
    source="${here}/horovod-0.28.1"
    mkdir -p "${source}/horovod/tensorflow"
    printf 'mpi_ops.cc\n  "xla_mpi_ops.cc"\n' > "${source}/horovod/tensorflow/CMakeLists.txt"
    while [[ $# -gt 0 && "$1" != -d ]]; do shift; done
    tar -czf "$2/horovod-0.28.1.tar.gz" -C "${here}" horovod-0.28.1 ;;
  *"--quiet wheel "*)
    [[ ! -e "${here}/broken" ]] || exit 1
    while [[ $# -gt 0 && "$1" != -w ]]; do shift; done
    cp "$3/horovod/tensorflow/CMakeLists.txt" "${here}/built"
    mkdir "$2" && touch "$2/horovod-0.28.1-py3.whl" ;;
  *".whl") touch "${here}/installed" ;;
esac
"""


@pytest.fixture
def venv(tmp_path) -> pathlib.Path:
    """An environment without Horovod."""
    binaries = tmp_path / "my venv/bin"
    binaries.mkdir(parents=True)
    (tmp_path / "temporary").mkdir()
    for tool in ("python", "g++", "make"):
        (binaries / tool).write_text(_PYTHON)
        (binaries / tool).chmod(0o755)
    return tmp_path / "my venv"


def _install(venv: pathlib.Path) -> subprocess.CompletedProcess:
    environment = {
        "TERNGRAD_VENV": str(venv),
        "TMPDIR": str(venv.parent / "temporary"),
        "PATH": f"{venv}/bin:{os.environ['PATH']}",
    }
    return subprocess.run(
        ["bash", _REPO / "scripts/install_horovod.sh"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG_SECS,
        check=False,
    )


def test_it_builds_without_what_tensorflow_no_longer_has_and_only_once(venv):
    results = [_install(venv) for _ in range(2)]
    assert [result.returncode for result in results] == [0, 0], results
    assert "Horovod already works." in results[1].stdout
    assert (venv / "bin/built").read_text() == "mpi_ops.cc\n"
    assert (venv / "bin/calls").read_text().count("--quiet wheel ") == 1
    assert not list((venv.parent / "temporary").iterdir())


def test_a_build_that_fails_installs_nothing_and_leaves_nothing_behind(venv):
    (venv / "bin/broken").touch()
    result = _install(venv)
    assert result.returncode == 1
    assert "install_horovod.sh: Horovod did not build; see the reason above" in result.stderr
    assert not (venv / "bin/installed").exists()
    assert not list((venv.parent / "temporary").iterdir())


def test_a_missing_tensorflow_is_named_with_the_command_that_installs_it(tmp_path):
    (tmp_path / "temporary").mkdir()
    nothing = tmp_path / "nothing"
    assert _install(nothing).stderr == (
        f"install_horovod.sh: needs TensorFlow in {nothing}; install it with scripts/setup.sh\n"
    )
