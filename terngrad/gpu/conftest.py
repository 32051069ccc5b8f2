"""A simulated GPU that computes on the host."""

import pytest

from terngrad.gpu import nvrtc
from terngrad.ops.library import UnavailableError
from terngrad.testing import gpu


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    """Its driver."""
    return gpu.FakeDriver(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def host_gpu(driver):
    """Its driver, which computes what `terngrad.numpy` is asked with HostArrays."""
    with driver.in_use():
        yield driver
    assert driver["current"] == 0


@pytest.fixture(scope="session")
def compiler():
    """NVRTC of this machine, one that knows all architectures of the tests."""
    try:
        found = nvrtc.load()
    except UnavailableError as error:
        pytest.skip(str(error))
    if missing := set(gpu.ARCHITECTURES) - set(found.architectures):
        pytest.skip(f"NVRTC {found.version} lacks {missing}")
    return found
