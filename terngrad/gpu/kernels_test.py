"""The kernels' code: NVRTC compiles it for every card, and only once. No GPU is needed."""

import re
from unittest import mock

import pytest

from terngrad.gpu import kernels, nvrtc
from terngrad.ops.library import UnavailableError
from terngrad.testing.gpu import ARCHITECTURES


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
    assert not warnings  # that cards before 7.5 are deprecated says nothing of the kernels


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


def test_law_10_an_nvrtc_that_cannot_compile_the_kernels_is_named(compiler, texts, tmp_path):
    texts["h.h"] = "no kernel\n"
    with (
        mock.patch.object(nvrtc, "load", return_value=compiler),
        pytest.raises(UnavailableError, match=r"^NVRTC [\d.]+ cannot compile the kernels: .*$"),
    ):
        kernels.code(90)
    assert not list(tmp_path.iterdir())
