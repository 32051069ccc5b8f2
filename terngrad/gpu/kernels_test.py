"""The kernels' code: NVRTC compiles it for every card, and only once. No GPU is needed."""

import os
import re
import subprocess
import sys
from unittest import mock

import pytest

from terngrad.gpu import kernels, nvrtc
from terngrad.ops.library import UnavailableError
from terngrad.testing.gpu import ARCHITECTURES

NAME = "kernels-sm_90-0123.bin"
_MAKE = """
import sys, time
from terngrad.gpu import kernels
def make():
    time.sleep(0.2)
    return bytes(range(256)) * 4000
sys.stdout.write(str(len(kernels.cached("both.bin", make))))
"""


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_kernel_compiles_and_spills_nothing(compiler, architecture):
    options = (*nvrtc.OPTIONS, "--ptxas-options=--verbose")
    target = compiler.target(architecture)
    code, log = kernels.compiled(compiler, target, kernels.sources(), options)
    names = re.findall(r"Compiling entry function '(\w+)'", log)
    assert names and all(name.encode() in code for name in names)
    registers = dict(zip(names, re.findall(r"Used (\d+) registers", log), strict=True))
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    print(f"{target}: registers {registers}")
    assert set(spills) == {("0", "0")}, log
    warnings = [line for line in log.splitlines() if "warning" in line and "deprecated" not in line]
    assert not warnings  # allowed: that cards before 7.5 are deprecated


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """Small sources in the place of the kernels, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = {kernels.SOURCE: '#include "h.h"\n', "h.h": "__global__ void F() {}\n"}
    monkeypatch.setattr(kernels, "sources", lambda: found)
    return found


def test_code_is_compiled_once_for_its_sources_card_and_compiler(compiler, texts, tmp_path):
    with (
        mock.patch.object(nvrtc, "load", return_value=compiler),
        mock.patch.object(compiler, "compile", wraps=compiler.compile) as compile_,
    ):
        first = kernels.code(90)
        assert kernels.code(90) == first and compile_.call_count == 1
        kernels.code(80)
        texts["h.h"] += "// changed\n"
        kernels.code(90)
        assert compile_.call_count == 3
        with mock.patch.object(compiler, "version", nvrtc.Version(12, 0)):
            kernels.code(90)
        assert compile_.call_count == 4
    assert len(list((tmp_path / "terngrad").iterdir())) == 4


def test_a_damaged_file_of_the_cache_is_compiled_again(compiler, texts, tmp_path):
    with mock.patch.object(nvrtc, "load", return_value=compiler):
        code = kernels.code(90)
        (path,) = (tmp_path / "terngrad").iterdir()
        path.write_bytes(path.read_bytes()[:100])
        assert kernels.code(90) == code


def test_law_10_a_missing_nvrtc_is_named(texts):
    missing = UnavailableError("NVRTC is not found; install it")
    with (
        mock.patch.object(nvrtc, "load", side_effect=missing),
        pytest.raises(UnavailableError, match=r"^NVRTC is not found; install it$"),
    ):
        kernels.code(90)


def test_without_nvrtc_code_of_the_cache_is_used_whatever_version_made_it(texts, tmp_path):
    some = mock.Mock(spec=nvrtc.Nvrtc, architectures=(80, 90))
    some.target = lambda capability: nvrtc.Nvrtc.target(some, capability)
    for version in (nvrtc.Version(12, 9), nvrtc.Version(13, 0)):
        some.version, some.compile.return_value = version, nvrtc.Compiled(b"%d" % version[0], "")
        with mock.patch.object(nvrtc, "load", return_value=some):
            kernels.code(90)
    older, newer = sorted((tmp_path / "terngrad").iterdir())
    os.utime(newer, (0, 0))
    with mock.patch.object(nvrtc, "load", side_effect=UnavailableError("no NVRTC")):
        assert kernels.code(90) == b"12"
        older.write_bytes(b"damaged")
        assert kernels.code(90) == b"13"
        with pytest.raises(UnavailableError, match="no NVRTC"):
            kernels.code(80)
    with mock.patch.object(nvrtc, "load", return_value=some):
        kernels.code(120)  # this NVRTC does not know the card, so it makes PTX
    with mock.patch.object(nvrtc, "load", side_effect=UnavailableError("no NVRTC")):
        assert kernels.code(120) == b"13"
        texts["h.h"] += "// changed\n"
        with pytest.raises(UnavailableError, match="no NVRTC"):
            kernels.code(90)


def test_an_nvrtc_that_no_longer_knows_the_card_is_as_good_as_none(texts):
    some = mock.Mock(spec=nvrtc.Nvrtc, architectures=(70, 90), version=nvrtc.Version(12, 9))
    some.target = lambda capability: nvrtc.Nvrtc.target(some, capability)
    some.compile.return_value = nvrtc.Compiled(b"12", "")
    with mock.patch.object(nvrtc, "load", return_value=some):
        kernels.code(70)
        some.architectures, some.version = (75, 90), nvrtc.Version(13, 0)
        assert kernels.code(70) == b"12"
        texts["h.h"] += "// changed\n"
        with pytest.raises(UnavailableError, match=r"NVRTC 13\.0 supports newer ones only"):
            kernels.code(70)


def test_law_10_an_nvrtc_that_cannot_compile_the_kernels_is_named(compiler, texts, tmp_path):
    texts["h.h"] = "no kernel\n"
    with (
        mock.patch.object(nvrtc, "load", return_value=compiler),
        pytest.raises(UnavailableError, match=r"^NVRTC [\d.]+ cannot compile the kernels: .*$"),
    ):
        kernels.code(90)
    assert not list(tmp_path.iterdir())


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """The user's cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def files(home):
    return sorted(path.name for path in (home / "terngrad").iterdir())


def test_content_is_made_once(home):
    made = mock.Mock(return_value=b"code")
    assert [kernels.cached(NAME, made) for _ in range(3)] == [b"code"] * 3
    assert made.call_count == 1
    assert files(home) == [NAME]


def test_other_users_may_read_what_a_shared_folder_keeps(home):
    kernels.cached(NAME, lambda: b"code")
    assert (home / "terngrad" / NAME).stat().st_mode & 0o777 == 0o644


def test_other_names_have_contents_of_their_own():
    assert kernels.cached("one", lambda: b"1") == b"1"
    assert kernels.cached("two", lambda: b"2") == b"2"


def test_without_xdg_cache_home_the_folder_is_in_the_home(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert kernels.folder() == "/home/someone/.cache/terngrad"


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b"x" + b[1:], lambda b: b""])
def test_damaged_content_is_made_again(home, damage):
    kernels.cached(NAME, lambda: b"code")
    path = home / "terngrad" / NAME
    path.write_bytes(damage(path.read_bytes()))
    assert kernels.cached(NAME, lambda: b"new") == b"new"
    assert kernels.cached(NAME, lambda: b"newer") == b"new"


def test_content_that_cannot_be_made_leaves_nothing(home):
    with pytest.raises(ValueError, match="no code"):
        kernels.cached(NAME, mock.Mock(side_effect=ValueError("no code")))
    assert not home.exists()


def said(home, capfd):
    """Returns why kernels are not kept, according to the only line on stderr."""
    (line,) = capfd.readouterr().err.splitlines()
    begins, ends = f"GPU kernels are not kept in {home}/terngrad: ", "; each process compiles its"
    assert line.startswith(begins) and line.endswith(f"{ends} kernels")
    return line.removeprefix(begins).partition(ends)[0]


@pytest.mark.parametrize("function", ["makedirs", "replace"])
def test_law_10_a_full_or_unwritable_folder_costs_one_line(home, function, capfd):
    full = OSError(28, "No space left on device")
    with mock.patch.object(kernels.os, function, side_effect=full):
        for _ in range(2):  # as with two GPUs
            assert kernels.cached(NAME, lambda: b"code") == b"code"
    assert said(home, capfd) == "No space left on device"
    assert not home.exists() or files(home) == []
    assert kernels.cached(NAME, lambda: b"again") == b"again"


def test_law_10_a_folder_that_is_a_file_costs_one_line(home, capfd):
    home.write_text("a file")
    assert kernels.cached(NAME, lambda: b"code") == b"code"
    assert said(home, capfd) == "Not a directory"


def test_law_10_a_file_that_cannot_be_read_costs_one_line(home, capfd):
    (home / "terngrad" / NAME).mkdir(parents=True)
    assert kernels.cached(NAME, lambda: b"code") == b"code"
    assert said(home, capfd) == "Is a directory"


def test_two_processes_make_the_same_content_at_once(home):
    command = [sys.executable, "-c", _MAKE]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) for _ in range(2)]
    assert [process.communicate()[0] for process in both] == [b"1024000"] * 2
    assert files(home) == ["both.bin"]
    assert len(kernels.cached("both.bin", lambda: b"")) == 1024000
