"""At which addresses a process listens."""

import socket

import pytest

from terngrad.cluster.addresses import bind, is_loopback, listen, listening_address
from terngrad.testing.limits import HANG_SECS


def is_reached(address, port):
    try:
        with socket.create_connection((address, port), timeout=HANG_SECS):
            return True
    except OSError:
        return False


@pytest.mark.parametrize(
    ("host", "elsewhere"),
    [("127.0.0.1", False), ("localhost", False), ("", True), ("192.0.2.1", True)],
)
def test_a_process_listens_at_its_own_address_alone_where_that_is_known(host, elsewhere):
    with listen(host, 0) as listener:
        port = listener.getsockname()[1]
        assert is_reached("127.0.0.1", port)
        assert is_reached("127.0.0.2", port) == elsewhere


@pytest.mark.parametrize(("address", "elsewhere"), [("127.0.0.1", False), ("[::]", True)])
@pytest.mark.parametrize("has_ipv6", [True, False])
def test_a_process_listens_at_all_addresses_without_ipv6_too(
    monkeypatch, address, elsewhere, has_ipv6
):
    if not has_ipv6:
        monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with bind(f"{address}:0", 4) as listener:
        port = listener.getsockname()[1]
        assert is_reached("127.0.0.1", port)
        assert is_reached("127.0.0.2", port) == elsewhere


def test_only_loopback_is_this_machine_alone():
    assert is_loopback("127.0.0.1")
    assert is_loopback("localhost")
    assert is_loopback("::1")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("192.0.2.1")
    assert not is_loopback("no such host")
    assert listening_address("127.0.0.1", 5, only_here=True) == "127.0.0.1:5"
    assert listening_address("::1", 5, only_here=True) == "[::1]:5"
    assert listening_address("192.0.2.1", 5, only_here=False) == "192.0.2.1:5"
