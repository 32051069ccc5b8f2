"""One suite, several implementations: a test that takes `kernels` runs on each of them."""

import os

import pytest

from terngrad.ops import library
from terngrad.ops.library import PATHS
from terngrad.ops.native import NativeKernels
from terngrad.ops.reference import ReferenceKernels


@pytest.fixture(scope="session", params=["reference", *PATHS])
def kernels(request):
    """The reference, and the native kernels of every instruction set that this processor has."""
    if request.param == "reference":
        return ReferenceKernels()
    return native_kernels(request.param)


@pytest.fixture(scope="session", params=PATHS)
def native(request):
    """The native kernels alone."""
    return native_kernels(request.param)


def native_kernels(path):
    """Kernels of a path; skips where they are not to be had."""
    try:
        return NativeKernels(path)
    except (library.UnavailableError, ValueError) as error:
        if isinstance(error, library.UnavailableError) and os.environ.get("TERNGRAD_KERNELS"):
            raise  # they were asked for
        pytest.skip(str(error))
