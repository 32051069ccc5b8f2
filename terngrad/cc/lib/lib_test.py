"""Compiles the native kernels without TensorFlow and checks their laws (kernels_test.cc)."""

import concurrent.futures
import glob
import os
import shutil
import subprocess
import sys

import pytest

from terngrad.ops import build
from terngrad.ops.library import PATHS
from terngrad.testing.limits import HANG_SECS

LIBRARY = build.sources("lib", "*.cc")
LAWS = os.path.join("terngrad", "cc", "lib", "kernels_test.cc")
NO_SUCH_PATH = 77  # kernels_test's exit code
USERS = [flag for flag in build.FLAGS if flag != "-w"]
BUILDS = {
    "users": USERS,
    "sanitized": [
        *USERS,
        "-g",
        "-O1",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
    ],
}
# GCC 12 finds uninitialized values in its own headers for AVX-512; clang knows only one of the two.
WARNINGS = [
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unknown-warning-option",
    "-Wno-uninitialized",
    "-Wno-maybe-uninitialized",
]


def run(command, timeout=HANG_SECS):
    return subprocess.run(
        command, cwd=build.ROOT, capture_output=True, text=True, timeout=timeout, check=False
    )


def run_well(command):
    done = run(command)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


def found(*programs):
    """Returns the first program found, beside Python or on the path; skips if there is none."""
    folders = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    for program in programs:
        if path := shutil.which(program, path=folders):
            return path
    pytest.skip(f"needs {' or '.join(programs)}")


def compiler():
    return build.compiler() or pytest.skip("needs a C++ compiler")


def compiled(cxx, flags, sources, folder, flags_of=build.flags_of):
    """Compiles the sources; returns the object files."""
    objects = [os.path.join(folder, os.path.basename(source) + ".o") for source in sources]
    jobs = [
        [cxx, *flags, *WARNINGS, *flags_of(source), "-I.", "-c", source, "-o", target]
        for source, target in zip(sources, objects, strict=True)
    ]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(run_well, jobs))
    return objects


@pytest.fixture(scope="module", params=["users", pytest.param("sanitized", marks=pytest.mark.slow)])
def laws(request, tmp_path_factory):
    """The program that checks the laws, compiled as users do and with sanitizers."""
    folder = tmp_path_factory.mktemp(request.param)
    program, flags = str(folder / "laws"), BUILDS[request.param]
    (folder / "nothing.cc").write_text("int main() {}\n")
    if run([compiler(), *flags, str(folder / "nothing.cc"), "-o", program]).returncode:
        pytest.skip(f"{compiler()} cannot link with the flags of {request.param!r}")
    objects = compiled(compiler(), flags, [*LIBRARY, LAWS], folder)
    run_well([compiler(), *flags, *objects, "-o", program])
    return program


@pytest.fixture(scope="module")
def aarch64_laws(tmp_path_factory):
    """The program for 64-bit ARM, which has the portable path alone."""
    cxx = found("aarch64-linux-gnu-g++")
    folder = tmp_path_factory.mktemp("aarch64")
    program = str(folder / "laws")
    objects = compiled(cxx, USERS, [*LIBRARY, LAWS], folder, flags_of=lambda source: ())
    run_well([cxx, "-static", *objects, "-o", program])
    return program


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_laws_hold(laws, path):
    done = run([laws, path])
    if done.returncode == NO_SUCH_PATH and path != "portable":
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{path}: " in done.stdout


def test_the_portable_path_compiles_for_aarch64(aarch64_laws):
    assert os.path.exists(aarch64_laws)


def test_laws_hold_on_aarch64(aarch64_laws):
    emulator = found("qemu-aarch64-static", "qemu-aarch64")
    assert "portable: " in run_well([emulator, aarch64_laws, "portable"])
    assert run([emulator, aarch64_laws, "avx2"]).returncode == NO_SUCH_PATH


@pytest.mark.slow
def test_no_code_is_shared_between_instruction_sets(tmp_path):
    # If several objects define a function, the linker keeps one copy, whose instructions this
    # processor may lack. Without optimization no function is hidden by inlining.
    nm = found("nm")
    sources = build.sources("lib", "kernels_*.cc")
    defined_in = {}
    for target in compiled(compiler(), [*USERS, "-O0"], sources, tmp_path):
        listing = run_well([nm, "--defined-only", "--extern-only", target])
        for name in {line.split()[-1] for line in listing.splitlines() if line}:
            defined_in.setdefault(name, []).append(os.path.basename(target))
    assert len(defined_in) > len(sources)
    assert not {name: files for name, files in defined_in.items() if len(files) > 1}


def test_sources_are_formatted():
    files = glob.glob(os.path.join(os.path.join(build.ROOT, "terngrad", "cc"), "*", "*.[ch]*"))
    assert {os.path.join(build.ROOT, source) for source in LIBRARY} <= set(files)
    run_well([found("clang-format"), "--style=file", "--dry-run", "-Werror", *files])
