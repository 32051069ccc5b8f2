"""Fixtures that run a test on each implementation of the kernels."""

import os

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


def native_kernels(path):
    """Returns the native kernels of a path; skips if they are not available."""
    try:
        return NativeKernels(path)
    except (library.UnavailableError, ValueError) as error:
        if isinstance(error, library.UnavailableError) and os.environ.get("TERNGRAD_KERNELS"):
            raise  # TERNGRAD_KERNELS asks for them
        pytest.skip(str(error))
