"""Fixtures that run a test on each implementation of the kernels."""

import contextlib
import os
from pathlib import Path

import pytest

from terngrad.ops import library
from terngrad.ops.library import PATHS
from terngrad.ops.native import NativeKernels
from terngrad.ops.reference import ReferenceKernels


@pytest.fixture(scope="session", params=["reference", *PATHS])
def kernels(request):
    """The reference, and the native kernels of every instruction set of this processor."""
    if request.param == "reference":
        return ReferenceKernels()
    return native_kernels(request.param)


@pytest.fixture(scope="session", params=PATHS)
def native(request):
    """The native kernels alone."""
    return native_kernels(request.param)


@pytest.fixture(scope="session")
def natives():
    """The native kernels of all instruction sets of this processor, for costly comparisons."""
    lacking = _lacking_paths()
    with skipped_without_native_code():
        return [NativeKernels(path) for path in PATHS if path not in lacking]


@pytest.fixture(scope="session")
def native_library():
    """Skips tests of native code where there is none."""
    with skipped_without_native_code():
        library.load()


def _lacking_paths():
    """Returns the instruction sets that this processor lacks, as the kernel tells."""
    flags = Path("/proc/cpuinfo").read_text().split()
    needed = {"avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl"}, "avx2": {"avx2", "bmi2"}}
    return {path for path, names in needed.items() if not names <= set(flags)}


def native_kernels(path):
    """Returns the native kernels of a path; skips if they are not available."""
    with skipped_without_native_code():
        try:
            return NativeKernels(path)
        except ValueError as error:  # this processor lacks the instructions
            pytest.skip(str(error))


@contextlib.contextmanager
def skipped_without_native_code():
    """Skips the test if there is no native code, unless TERNGRAD_KERNELS asks for it."""
    try:
        yield
    except library.UnavailableError as error:
        if os.environ.get("TERNGRAD_KERNELS"):
            raise
        pytest.skip(str(error))
