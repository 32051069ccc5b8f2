"""Bazel builds every program."""

import ast
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

_REPO = pathlib.Path(__file__).parents[1]


def _listed(build_file: pathlib.Path, name: str) -> list[str]:
    """Returns a list of a BUILD file, whose language is a part of Python."""
    (programs,) = (
        node.value
        for node in ast.parse(build_file.read_text()).body
        if isinstance(node, ast.Assign) and node.targets[0].id == name
    )
    return ast.literal_eval(programs)


@pytest.mark.parametrize(
    ("package", "folder", "name"),
    [
        ("inception", "inception", "PROGRAMS"),
        ("inception", "inception/data", "DATA_PROGRAMS"),
        ("slim", "slim", "PROGRAMS"),
    ],
)
def test_the_build_file_lists_every_program(package, folder, name):
    programs = [
        path.stem
        for path in sorted((_REPO / folder).glob("*.py"))
        if '\nif __name__ == "__main__":' in path.read_text()
    ]
    assert _listed(_REPO / package / "BUILD", name) == programs


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("bazel"), reason="Bazel is not installed")
def test_a_built_program_runs_outside_the_repository(tmp_path):
    subprocess.run(["bash", _REPO / "scripts/build_all.sh"], check=True)
    path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    result = subprocess.run(
        [_REPO / "bazel-bin/inception/mnist_train", "--help"],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--grad_bits" in result.stdout


def test_a_missing_bazel_is_named_with_the_command_that_installs_it(tmp_path):
    for tool in ("bash", "dirname", "basename"):
        (tmp_path / tool).symlink_to(shutil.which(tool))
    result = subprocess.run(
        ["bash", _REPO / "scripts/build_all.sh"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert result.stderr == (
        "build_all.sh: needs Bazel; on Debian or Ubuntu: sudo apt-get install -y bazel-bootstrap\n"
    )
