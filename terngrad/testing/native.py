"""Programs of C++ that check the laws of `terngrad/cc` without TensorFlow."""

from __future__ import annotations

import glob
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from terngrad.ops import build
from terngrad.ops.library import FLAGS, ROOT
from terngrad.testing.limits import HANG_SECS


def sanitized(sanitizers: str) -> tuple[str, ...]:
    """Returns the flags of a build in which GCC's or Clang's sanitizers end a program."""
    return (*FLAGS, "-O1", "-g", f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all")


def compiler() -> str:
    """Returns the C++ compiler; skips the test if there is none."""
    return build.compiler() or pytest.skip("needs a C++ compiler")


def law_sources(folder: str) -> list[str]:
    """Returns the sources of the program that checks the laws of a folder of `terngrad/cc`.

    They are relative to the repository; `library.sources` has what the program is linked with.
    """
    found = glob.glob(os.path.join("terngrad", "cc", folder, "*_test.cc"), root_dir=ROOT)
    return sorted(found)


def count_laws(folder: str) -> int:
    """Returns how many laws the sources of `law_sources` list: all that a run must check."""
    texts = (Path(ROOT, source).read_text() for source in law_sources(folder))
    return sum(text.count("LAW(") for text in texts)


def program(
    folder: Path,
    sources: Sequence[str],
    flags: Sequence[str] = FLAGS,
    cxx: str | None = None,
    link_flags: Sequence[str] = (),
    machine: str = "",
) -> str:
    """Returns a program linked in `folder`; see `build.compiled` for the rest.

    Skips the test if the compiler cannot link with these flags: their libraries are missing.
    """
    cxx, linked = cxx or compiler(), str(folder / "laws")
    nothing = folder / "nothing.cc"
    nothing.write_text("int main() {}\n")
    if run([cxx, *flags, str(nothing), *link_flags, "-o", linked]).returncode:
        pytest.skip(f"{cxx} cannot link with {' '.join([*flags, *link_flags])}")
    build.run(
        [
            cxx,
            *flags,
            *build.compiled(cxx, sources, flags, machine=machine),
            *link_flags,
            "-o",
            linked,
        ]
    )
    return linked


def run(command: Sequence[str]) -> subprocess.CompletedProcess:
    """Runs a command at the top of the repository."""
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECS, check=False
    )


def output(command: Sequence[str]) -> str:
    """Runs a command that must succeed; returns its output."""
    done = run(command)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout
