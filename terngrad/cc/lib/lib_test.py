"""Checks the laws of the native kernels without TensorFlow (*_test.cc), and the sources."""

import glob
import os
import shutil
import sys

import pytest

from terngrad.ops import build
from terngrad.ops.library import FLAGS, PATHS, ROOT, sources
from terngrad.testing import native

LIBRARY = sources("lib", "*.cc")
LAWS = native.law_sources("lib")
NO_SUCH_PATH = 77  # kernels_test's exit code
BUILDS = {"users": FLAGS, "sanitized": native.sanitized("address,undefined")}
# GCC 12 finds uninitialized values in its own headers for AVX-512; clang knows only one of the two.
WARNINGS = [
    *(flag for flag in FLAGS if flag != "-w"),
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unknown-warning-option",
    "-Wno-uninitialized",
    "-Wno-maybe-uninitialized",
]


def found(*programs):
    """Returns the first program found, beside Python or on the path; skips if there is none."""
    folders = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    for program in programs:
        if path := shutil.which(program, path=folders):
            return path
    pytest.skip(f"needs {' or '.join(programs)}")


@pytest.fixture(
    scope="module", params=["users", pytest.param("sanitized", marks=pytest.mark.exhaustive)]
)
def laws(request, tmp_path_factory):
    """The program that checks the laws, compiled as users do and with sanitizers."""
    folder = tmp_path_factory.mktemp(request.param)
    return native.program(folder, [*LIBRARY, *LAWS], BUILDS[request.param])


@pytest.fixture(scope="module")
def aarch64_laws(tmp_path_factory):
    """The program for 64-bit ARM, which has the portable path alone."""
    return native.program(
        tmp_path_factory.mktemp("aarch64"),
        [*LIBRARY, *LAWS],
        cxx=found("aarch64-linux-gnu-g++"),
        link_flags=["-static"],
        machine="aarch64",
    )


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_laws_hold(laws, path):
    done = native.run([laws, path])
    if done.returncode == NO_SUCH_PATH and path != "portable":
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == f"{path}: {native.count_laws('lib')} laws hold\n"


@pytest.mark.exhaustive
def test_laws_hold_on_aarch64(aarch64_laws):
    emulator = found("qemu-aarch64-static", "qemu-aarch64")
    assert "portable: " in native.output([emulator, aarch64_laws, "portable"])
    assert native.run([emulator, aarch64_laws, "avx2"]).returncode == NO_SUCH_PATH


@pytest.mark.slow
def test_sources_compile_without_warnings():
    others = [*sources("gpu", "*.cc"), *sources("net", "*.cc"), *native.law_sources("net")]
    for source in [*LIBRARY, *LAWS, *others]:
        own = build.flags_of(source)
        done = native.run([native.compiler(), *WARNINGS, *own, "-I.", "-fsyntax-only", source])
        assert (done.returncode, done.stderr) == (0, ""), done.stderr


@pytest.mark.slow
def test_no_code_is_shared_between_instruction_sets():
    # If several objects define a function, the linker keeps one copy, whose instructions this
    # processor may lack. Without optimization no function is hidden by inlining.
    nm = found("nm")
    files = sources("lib", "kernels_*.cc")
    defined_in = {}
    for target in build.compiled(native.compiler(), files, [*FLAGS, "-O0"]):
        listing = native.output([nm, "--defined-only", "--extern-only", target])
        for name in {line.split()[-1] for line in listing.splitlines() if line}:
            defined_in.setdefault(name, []).append(os.path.basename(target))
    assert len(defined_in) > len(files)
    assert not {name: files for name, files in defined_in.items() if len(files) > 1}


def test_sources_are_formatted():
    files = glob.glob(os.path.join(ROOT, "terngrad", "cc", "**", "*.[ch]*"), recursive=True)
    assert {os.path.join(ROOT, source) for source in LIBRARY} <= set(files)
    native.output([found("clang-format"), "--style=file", "--dry-run", "-Werror", *files])
