"""test.sh checks style, then runs the tests that were asked for."""

import pathlib
import subprocess

import pytest

_SCRIPTS = pathlib.Path(__file__).parent
_FOLDERS = "./*.py|bazel|benchmarks|deploy|docs|examples|inception|scripts|slim|terngrad"
_VERMIN = "vermin|--target=3.10-|--no-tips|--quiet|--violations|--exclude|str.decode"
_STYLE = [
    "python|-m|ruff|check|.",
    "python|-m|ruff|format|--check|.",
    f"{_VERMIN}|{_FOLDERS}",
]
_PYTEST = "python|-m|pytest|-n|auto|--maxprocesses|4|--dist|worksteal|"
_TOOLS, _SETUP = "install_test_tools.sh|--all", "setup.sh|dev"
_CI = "-m|not exhaustive"


@pytest.fixture
def calls(tmp_path):
    """Runs test.sh of a working copy whose other programs only say what they are asked."""
    say = '#!/bin/bash\nIFS="|"; echo "${0##*/}|$*"\n'
    (tmp_path / "scripts").mkdir()
    for name in ("test.sh", "common.sh"):
        (tmp_path / "scripts" / name).write_text((_SCRIPTS / name).read_text())
    programs = [tmp_path / "venv/bin" / name for name in ("python", "bazel", "vermin")]
    for name in ("setup.sh", "install_test_tools.sh", "install_horovod.sh"):
        programs.append(tmp_path / "scripts" / name)
    programs[0].parent.mkdir(parents=True)
    for program in programs:
        program.write_text(say)
        program.chmod(0o755)

    def calls(*arguments: str) -> list[str]:
        environment = {
            "PATH": f"{tmp_path}/venv/bin:/usr/bin:/bin",
            "TERNGRAD_VENV": str(tmp_path / "venv"),
        }
        command = ["bash", tmp_path / "scripts/test.sh", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return [line.removesuffix("|") for line in done.stdout.splitlines()]

    return calls


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], _CI),
        (["slim", "-k", "two words"], f"{_CI}|slim|-k|two words"),
        (["--quick"], "-m|not slow and not exhaustive"),
        (["--quick", "slim"], "-m|not slow and not exhaustive|slim"),
    ],
)
def test_quick_leaves_out_the_slow_tests_and_the_rest_goes_to_pytest(calls, arguments, expected):
    assert calls(*arguments) == [_SETUP, *_STYLE, _PYTEST + expected]


def test_all_installs_what_is_missing_and_runs_every_test_also_with_bazel(calls):
    assert calls("--all") == [
        *(_TOOLS, _SETUP, "install_horovod.sh", *_STYLE, f"{_PYTEST}--no-skips"),
        "bazel|test|--test_env=PYTEST_ADDOPTS=-m 'not exhaustive'|//...",
    ]
    assert calls("--all", "slim")[-1] == f"{_PYTEST}--no-skips|slim"
