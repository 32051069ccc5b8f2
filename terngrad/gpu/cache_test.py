"""Laws of the cache: whole or absent, whoever writes at once, whatever the folder is like."""

import os
import subprocess
import sys
import warnings
from unittest import mock

import pytest

from terngrad.gpu import cache

NAME = "kernels-sm_90-0123.bin"
_MAKE = """
import sys, time
from terngrad.gpu import cache
def make():
    time.sleep(0.2)
    return bytes(range(256)) * 4000
sys.stdout.write(str(len(cache.cached("both.bin", make))))
"""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """The user's cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def files(home):
    return sorted(path.name for path in (home / "terngrad").iterdir())


def test_content_is_made_once(home):
    made = mock.Mock(return_value=b"code")
    assert [cache.cached(NAME, made) for _ in range(3)] == [b"code"] * 3
    assert made.call_count == 1
    assert files(home) == [NAME]


def test_other_names_have_contents_of_their_own():
    assert cache.cached("one", lambda: b"1") == b"1"
    assert cache.cached("two", lambda: b"2") == b"2"


def test_without_xdg_cache_home_the_folder_is_in_the_home(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache.folder() == "/home/someone/.cache/terngrad"


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b"x" + b[1:], lambda b: b""])
def test_damaged_content_is_made_again(home, damage):
    cache.cached(NAME, lambda: b"code")
    path = home / "terngrad" / NAME
    path.write_bytes(damage(path.read_bytes()))
    assert cache.cached(NAME, lambda: b"new") == b"new"
    assert cache.cached(NAME, lambda: b"newer") == b"new"


def test_content_that_cannot_be_made_leaves_nothing(home):
    with pytest.raises(ValueError, match="no code"):
        cache.cached(NAME, mock.Mock(side_effect=ValueError("no code")))
    assert not home.exists()


@pytest.mark.parametrize("function", ["makedirs", "replace"])
def test_law_10_a_full_or_unwritable_folder_costs_one_line(home, function):
    full = OSError(28, "No space left on device")
    with (
        mock.patch.object(cache.os, function, side_effect=full),
        pytest.warns(
            RuntimeWarning, match=r"^GPU kernels are not kept in .*/terngrad: No space le"
        ),
    ):
        assert cache.cached(NAME, lambda: b"code") == b"code"
    assert not home.exists() or files(home) == []
    assert cache.cached(NAME, lambda: b"again") == b"again"


def test_law_10_a_folder_that_is_a_file_costs_one_line(home):
    home.write_text("a file")
    with pytest.warns(RuntimeWarning, match="are not kept in .*: Not a directory; each process"):
        assert cache.cached(NAME, lambda: b"code") == b"code"


def test_law_10_a_file_that_cannot_be_read_costs_one_line(home):
    (home / "terngrad" / NAME).mkdir(parents=True)
    with pytest.warns(RuntimeWarning, match=r"are not kept in .*: Is a directory"):
        assert cache.cached(NAME, lambda: b"code") == b"code"


def test_two_processes_make_the_same_content_at_once(home):
    command = [sys.executable, "-c", _MAKE]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) for _ in range(2)]
    assert [process.communicate()[0] for process in both] == [b"1024000"] * 2
    assert files(home) == ["both.bin"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(cache.cached("both.bin", lambda: b"")) == 1024000
