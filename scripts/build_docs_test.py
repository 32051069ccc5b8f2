"""build_docs.sh makes a site of the guides and of the public names, with search."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest

_REPO = pathlib.Path(__file__).parents[1]
_SITE = _REPO / "build/docs/html"


def _run(venv: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["bash", _REPO / "scripts/build_docs.sh"],
        env={"PATH": os.environ["PATH"], "TERNGRAD_VENV": venv} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def _calls(folder: pathlib.Path, *, has_sphinx: bool) -> list[str]:
    """Runs the script in an environment whose Python only records its arguments."""
    (folder / "bin").mkdir(parents=True)
    for name in ("python", "pip"):
        program = folder / "bin" / name
        fails = "" if has_sphinx else '[ "$1" = -c ] && exit 1\n'
        program.write_text(f'#!/bin/sh\necho "$@" >> "{folder}/calls"\n{fails}exit 0\n')
        program.chmod(0o755)
    result = _run(str(folder))
    assert result.returncode == 0, result.stderr
    return (folder / "calls").read_text().splitlines()


def test_what_the_build_needs_is_set_up_where_it_is_missing(tmp_path):
    installs = [
        call for call in _calls(tmp_path / "new", has_sphinx=False) if "pip install" in call
    ]
    assert len(installs) == 1
    assert installs[0].endswith(",docs]")
    assert not [call for call in _calls(tmp_path / "old", has_sphinx=True) if "pip" in call]


def test_a_warning_is_an_error(tmp_path):
    *_, build = _calls(tmp_path / "venv", has_sphinx=True)
    assert {"sphinx", "-W"} <= set(build.split())


def test_the_site_is_ignored_by_git():
    git = ["git", "-C", _REPO, "check-ignore", "-q", _SITE]
    if not (_REPO / ".git").exists():
        pytest.skip("not a checkout")
    assert subprocess.run(git, check=False).returncode == 0


@pytest.mark.slow
def test_the_site_has_each_guide_the_reference_and_search():
    missing = [name for name in ("sphinx", "myst_parser") if not importlib.util.find_spec(name)]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed: the extra docs brings them")
    result = _run(sys.prefix)
    assert result.returncode == 0, result.stdout + result.stderr
    for guide in (_REPO / "docs").glob("*.md"):
        assert (_SITE / "docs" / f"{guide.stem}.html").exists()
    reference = (_SITE / "docs/reference/terngrad.html").read_text(encoding="utf-8")
    assert 'id="terngrad.join"' in reference
    assert "host:port" in reference  # from the docstring
    index = (_SITE / "searchindex.js").read_text(encoding="utf-8")
    assert re.search(r'"terngrad":\[[^:]*"join"\]', index)
    assert "docs/index.html" in (_SITE / "index.html").read_text(encoding="utf-8")
