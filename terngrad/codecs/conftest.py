"""The kernels on which each test of a codec runs."""

import pytest

from terngrad.ops.native import NativeKernels
from terngrad.ops.reference import ReferenceKernels


@pytest.fixture(scope="session", params=["reference", "native"])
def kernels(request):
    """The reference and the fastest path; kernels_test shows that all paths agree."""
    if request.param == "reference":
        return ReferenceKernels()
    request.getfixturevalue("native_library")
    return NativeKernels()
