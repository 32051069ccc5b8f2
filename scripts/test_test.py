"""test.sh checks style, then runs the tests that were asked for."""

import pathlib
import subprocess

import pytest

_SCRIPTS = pathlib.Path(__file__).parent
_ALL = ["-m", "pytest", "-n", "auto", "--maxprocesses", "4", "--dist", "worksteal"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], []),
        (["slim", "-k", "two words"], ["slim", "-k", "two words"]),
        (["--quick"], ["-m", "not slow"]),
        (["--quick", "slim"], ["-m", "not slow", "slim"]),
    ],
)
def test_quick_leaves_out_the_slow_tests_and_the_rest_goes_to_pytest(tmp_path, arguments, expected):
    (tmp_path / "scripts").mkdir()
    for name in ("test.sh", "common.sh"):
        (tmp_path / "scripts" / name).write_text((_SCRIPTS / name).read_text())
    (tmp_path / "scripts/setup.sh").write_text("")
    python = tmp_path / "venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\nprintf "%s|" "$@" && echo\n')  # only says what it is asked
    python.chmod(0o755)
    done = subprocess.run(
        ["bash", tmp_path / "scripts/test.sh", *arguments],
        env={"PATH": "/usr/bin:/bin", "TERNGRAD_VENV": str(tmp_path / "venv")},
        capture_output=True,
        text=True,
        check=True,
    )
    style, layout, tests = (line.split("|")[:-1] for line in done.stdout.splitlines())
    assert (style, layout) == (
        ["-m", "ruff", "check", "."],
        ["-m", "ruff", "format", "--check", "."],
    )
    assert tests == [*_ALL, *expected]
