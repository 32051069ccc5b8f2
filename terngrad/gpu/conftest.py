"""A GPU that is the host."""

import pytest

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
