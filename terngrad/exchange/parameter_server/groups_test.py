"""Sets of workers survive their bytes."""

import pytest

from terngrad.exchange.parameter_server import groups


@pytest.mark.parametrize("workers", [(), (0,), (7, 8), (0, 3, 65535)])
def test_sets_of_workers_survive_their_bytes(workers):
    assert groups.unpack(groups.pack(workers)) == workers


def test_the_bytes_are_those_of_service_proto():
    assert groups.pack([1, 9]).hex(" ") == "02 02"
