"""test.sh checks style, then runs the tests that were asked for."""

import pathlib
import subprocess

import pytest

_SCRIPTS = pathlib.Path(__file__).parent
_ALL = ["-m", "pytest", "-n", "auto", "--maxprocesses", "4", "--dist", "worksteal"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["-m", "not exhaustive"]),
        (["slim", "-k", "two words"], ["-m", "not exhaustive", "slim", "-k", "two words"]),
        (["--quick"], ["-m", "not slow and not exhaustive"]),
        (["--quick", "slim"], ["-m", "not slow and not exhaustive", "slim"]),
        (["--all"], []),
        (["--all", "slim"], ["slim"]),
    ],
)
def test_each_kind_of_run_leaves_out_what_it_says_and_the_rest_goes_to_pytest(
    tmp_path, arguments, expected
):
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
