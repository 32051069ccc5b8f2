"""Where a ps listens, and what it says of a port that it cannot have."""

import pytest

from terngrad.cluster.channel import PortError
from terngrad.connect import listening


@pytest.mark.parametrize("address", ["127.0.0.1:3222", "host-a.invalid:3222", "[::1]:3222"])
def test_law_10_a_taken_port_is_named_by_the_address_that_the_flag_gives(address):
    tried = []

    def start(at):
        tried.append(at)
        raise PortError(f"cannot listen at {at}: Address already in use")

    with pytest.raises(PortError) as error:
        listening.listen(start, address, None, is_open=True)
    assert str(error.value) == f"cannot listen at {address}: Address already in use"
    assert tried[-1] == "[::]:3222"
