"""NVRTC: where it is found, what it compiles, and how it refuses. No GPU is needed."""

import ctypes
from unittest import mock

import pytest

from terngrad.gpu import nvrtc
from terngrad.ops import build
from terngrad.ops.library import UnavailableError
from terngrad.testing import native
from terngrad.testing.gpu import ARCHITECTURES

KERNEL = """
#include "terngrad/factor.h"
extern "C" __global__ void Scale(float* values) { values[threadIdx.x] *= kFactor; }
"""
HEADERS = {"terngrad/factor.h": "__device__ const float kFactor = 2.0f;\n"}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_headers_are_named_in_the_source(compiler, architecture):
    target = compiler.target(architecture)
    code = compiler.compile(KERNEL, target, headers=HEADERS).code
    assert target == f"sm_{architecture}"
    assert code.startswith(b"\x7fELF") and b"Scale" in code


def test_newer_cards_get_ptx(compiler):
    target = compiler.target(990)
    assert target == f"compute_{compiler.architectures[-1]}"
    code = compiler.compile(KERNEL, target, headers=HEADERS).code
    assert b".entry Scale" in code and code.endswith(b"\0")


def test_the_log_tells_of_registers(compiler):
    options = [*nvrtc.OPTIONS, "--ptxas-options=--verbose"]
    log = compiler.compile(KERNEL, "sm_90", headers=HEADERS, options=options).log
    assert "registers" in log and "0 bytes spill stores" in log


def test_each_operation_rounds(compiler):
    source = 'extern "C" __global__ void F(float* x) { x[0] = x[1] * x[2] + x[3]; }'
    code = compiler.compile(source, f"compute_{compiler.architectures[-1]}").code
    assert b"mul.rn.ftz.f32" in code and b"add.rn.ftz.f32" in code  # without .rn ptxas may fuse
    assert b"fma" not in code


def test_an_error_in_a_source_is_quoted(compiler):
    with pytest.raises(nvrtc.CompileError, match=r"(?s)^kernels.cu, sm_90: .*: error: "):
        compiler.compile("no kernel", "sm_90")
    with pytest.raises(nvrtc.CompileError, match=r"terngrad/factor.h"):
        compiler.compile(KERNEL, "sm_90")


def test_law_10_an_architecture_that_is_unknown_is_named(compiler):
    with pytest.raises(nvrtc.CompileError, match=r"sm_12345: .*INVALID_OPTION"):
        compiler.compile(KERNEL, "sm_12345", headers=HEADERS)


def test_law_10_cards_that_are_too_old_are_named():
    some = mock.Mock(spec=nvrtc.Nvrtc, architectures=(75, 90), version=nvrtc.Version(13, 0))
    for capability, text in (
        (61, "it has compute capability 6.1; the kernels need 7.0 or more"),
        (70, "it has compute capability 7.0; NVRTC 13.0 supports newer ones only; install"),
    ):
        with pytest.raises(UnavailableError, match=text):
            nvrtc.Nvrtc.target(some, capability)
    assert nvrtc.Nvrtc.target(some, 75) == "sm_75"
    assert nvrtc.Nvrtc.target(some, 89) == "compute_75"


def test_law_10_a_missing_nvrtc_is_named(monkeypatch):
    monkeypatch.setattr(nvrtc, "candidates", lambda: ["libnvrtc.so.none"])
    with pytest.raises(
        UnavailableError, match=r"^NVRTC is not found; install the CUDA toolkit, or"
    ):
        nvrtc.load.__wrapped__()


def test_law_10_a_file_that_is_no_nvrtc_is_named(tmp_path, monkeypatch):
    (tmp_path / "libnvrtc.so.12").write_text("no library")
    monkeypatch.setattr(nvrtc, "candidates", lambda: [str(tmp_path / "libnvrtc.so.12")])
    with pytest.raises(UnavailableError, match=r"^NVRTC cannot be loaded: .*libnvrtc.so.12"):
        nvrtc.load.__wrapped__()
    with pytest.raises(UnavailableError, match=r"^libc.so.6 is too old: it lacks nvrtcGetErrorStr"):
        nvrtc.Nvrtc("libc.so.6")


_FUNCTIONS = """
extern "C" {
int nvrtcVersion(int* major, int* minor) { *major = 99, *minor = 4; return 0; }
int nvrtcGetNumSupportedArchs(int* count) { *count = 1; return 0; }
int nvrtcGetSupportedArchs(int* found) { *found = 90; return 0; }
const char* nvrtcGetErrorString(int status) { return "error"; }
int nvrtcGetCUBIN(void* program, char* code) { return 0; }
}
"""


def test_nvrtc_finds_the_builtins_that_lie_beside_it(tmp_path):
    """As those of 13.0, which has no path to its own folder."""
    builtins, source = "libnvrtc-builtins.so.99.4", tmp_path / "functions.cc"
    source.write_text(_FUNCTIONS)
    for name in ("libnvrtc.so.99", builtins):
        options = ["-shared", "-fPIC", f"-Wl,-soname,{name}", str(source)]
        build.run([native.compiler(), *options, "-o", str(tmp_path / name)])
    with pytest.raises(OSError, match=builtins):
        ctypes.CDLL(builtins)
    assert nvrtc.Nvrtc(str(tmp_path / "libnvrtc.so.99")).version == (99, 4)
    ctypes.CDLL(builtins)


def test_a_package_goes_before_the_toolkit_and_the_loader(tmp_path, monkeypatch):
    for place in ("nvidia/cuda_nvrtc/lib", "nvidia/cu13/lib", "[toolkit]/lib64"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "libnvrtc.so.12").touch()
    spec = mock.Mock(submodule_search_locations=[str(tmp_path / "nvidia")])
    monkeypatch.setattr(nvrtc.importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "[toolkit]"))
    found = nvrtc.candidates()
    assert [path.removeprefix(str(tmp_path)) for path in found[:3]] == [
        "/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
        "/nvidia/cu13/lib/libnvrtc.so.12",
        "/[toolkit]/lib64/libnvrtc.so.12",
    ]
    assert found[-1] == "libnvrtc.so"
