"""A Spark session with two executors of this machine, which the tests of the folder share."""

import pytest

from terngrad.testing.spark import session


@pytest.fixture(scope="package")  # other folders' tests in this process may have a session, too
def spark():
    """A session with two executors of one core."""
    with session() as made:
        yield made
