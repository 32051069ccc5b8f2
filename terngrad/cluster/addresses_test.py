"""At which addresses a process listens."""

import socket

import pytest

from terngrad.cluster.addresses import Interface, dial, is_loopback, listen
from terngrad.cluster.channel import PortError
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


def test_a_process_listens_at_its_interface_alone_unless_its_host_is_this_machine():
    interface = Interface("other", ("127.0.0.3",))
    with listen("192.0.2.1", 0, interface=interface) as listener:
        assert listener.getsockname()[0] == "127.0.0.3"
    with listen("localhost", 0, interface=interface) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
    with pytest.raises(PortError, match=r"cannot listen at one:0: Cannot assign"):
        listen("one", 0, interface=Interface("gone", ("192.0.2.1",)))


def test_an_interface_has_an_address_for_each_kind_of_host():
    interface = Interface("eth1", ("10.1.0.4", "10.1.0.5", "fd00::4"))
    assert interface.address_for("no-such-host.invalid") == "10.1.0.4"
    assert interface.address_for("10.1.0.5") == "10.1.0.5"
    assert interface.address_for("fd00::9") == "fd00::4"
    assert interface.source_for("192.0.2.1") == "10.1.0.4"
    assert Interface("eth2", ("fd00::4",)).source_for("192.0.2.1") is None


def test_a_connection_to_this_machine_does_not_come_from_an_interface():
    elsewhere = Interface("eth1", ("192.0.2.1",))
    with (
        listen("127.0.0.1", 0) as listener,
        dial(listener.getsockname(), HANG_SECS, elsewhere) as connected,
    ):
        assert connected.getsockname()[0] == "127.0.0.1"
    with pytest.raises(
        OSError, match=r"eth1 \(192.0.2.1\) has no address of the kind of fd00::1's"
    ):
        dial(("fd00::1", 1), HANG_SECS, elsewhere)


def test_a_process_listens_at_all_addresses_without_ipv6_too(monkeypatch):
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with listen("", 0, backlog=4) as listener:
        port = listener.getsockname()[1]
        assert is_reached("127.0.0.1", port)
        assert is_reached("127.0.0.2", port)


def test_a_process_for_this_machine_alone_listens_at_no_other_address():
    with listen("127.0.0.1", 0, only_here=True) as listener:
        assert not is_reached("127.0.0.2", listener.getsockname()[1])
    with pytest.raises(PortError, match=r"cannot listen at 192\.0\.2\.1:0: Cannot assign"):
        listen("192.0.2.1", 0, only_here=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "host-a.invalid", "::1"])
def test_law_10_a_taken_port_is_named_by_the_address_that_the_flag_gives(host):
    with listen("", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(PortError) as error:
            listen(host, port)
    given = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    assert str(error.value) == f"cannot listen at {given}: Address already in use"


def test_only_loopback_is_this_machine_alone():
    assert is_loopback("127.0.0.1")
    assert is_loopback("localhost")
    assert is_loopback("::1")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("192.0.2.1")
    assert not is_loopback("no such host")
