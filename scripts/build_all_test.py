"""build_all.sh and test.sh --bazel install Bazel where they may, and build all with it."""

import os
import pathlib
import shutil
import subprocess

import pytest

_SCRIPTS = pathlib.Path(__file__).parent
_TOOLS = ("bash", "dirname", "basename", "cat", "chmod", "mv")
_BAZEL = """\
#!/bin/bash
echo "bazel $* with $(type -P python3)" >> "${HOME}/asked"
echo "${PATH}" > "${HOME}/path"
"""
# Installing puts Bazel on PATH.
_APT_GET = """\
#!/bin/bash
echo "apt-get $*" >> "${HOME}/asked"
[[ $1 == update ]] || mv "${HOME}/bazel" "${0%/*}/bazel"
"""
_BUILD = "bazel build //..."
_TEST = "bazel test --test_env=PYTEST_ADDOPTS=-m 'not exhaustive'"


@pytest.fixture
def run(tmp_path):
    """Runs a script of a working copy with some tools on PATH; returns it and what was asked."""
    tools, python = tmp_path / "tools", tmp_path / "venv/bin/python3"
    (tmp_path / "scripts").mkdir()
    for name in ("build_all.sh", "common.sh", "test.sh"):
        (tmp_path / "scripts" / name).write_text((_SCRIPTS / name).read_text())
    (tmp_path / "scripts/setup.sh").write_text("")
    tools.mkdir()
    for tool in _TOOLS:
        (tools / tool).symlink_to(shutil.which(tool))
    _write(python, "#!/bin/sh\n")
    _write(tmp_path / "bazel", _BAZEL)

    def run(script, *arguments, present, path=str(tools)):
        for name in present:
            _write(tools / name, {"bazel": _BAZEL, "apt-get": _APT_GET}[name])
        done = subprocess.run(
            ["bash", tmp_path / "scripts" / script, *arguments],
            env={
                "PATH": path,
                "HOME": str(tmp_path),
                "TERNGRAD_VENV": str(tmp_path / "venv"),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        asked = tmp_path / "asked"
        return done, asked.read_text().splitlines() if asked.exists() else []

    run.python = f" with {python}"
    return run


def _write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def test_all_is_built_with_the_python_of_the_environment(run):
    done, asked = run("build_all.sh", "--config=x", present=["bazel"])
    assert done.returncode == 0, done.stderr
    assert asked == ["bazel build --config=x //..." + run.python]


def test_an_active_environment_stands_on_the_path_once(run, tmp_path):
    path = f"{tmp_path}/venv/bin:{tmp_path}/tools"
    done, asked = run("build_all.sh", present=["bazel"], path=path)
    assert (done.returncode, asked) == (0, [_BUILD + run.python])
    assert (tmp_path / "path").read_text() == f"{path}\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_missing_bazel_is_installed(run):
    done, asked = run("build_all.sh", present=["apt-get"])
    assert done.returncode == 0, done.stderr
    update, install, build = asked
    assert update.startswith("apt-get update")
    assert install.startswith("apt-get install") and install.endswith(" bazel-bootstrap")
    assert build == _BUILD + run.python


@pytest.mark.parametrize("targets", ["//...", "//slim/... //docs/..."])
def test_the_tests_of_some_or_all_targets_run_with_bazel(run, targets):
    arguments = () if targets == "//..." else targets.split()
    done, asked = run("test.sh", "--bazel", *arguments, present=["bazel"])
    assert done.returncode == 0, done.stderr
    assert asked == [f"{_TEST} {targets}{run.python}"]
