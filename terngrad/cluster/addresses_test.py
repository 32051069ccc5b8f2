"""At which addresses a process listens."""

import socket

import pytest

from terngrad.cluster import addresses
from terngrad.cluster.addresses import (
    Interface,
    dial,
    is_loopback,
    listen,
    reserved_ports,
    split_address,
    unreserved_ports,
)
from terngrad.cluster.errors import MembershipError, PortError
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


def test_a_name_of_this_machine_is_reached_from_others_only_where_they_may(monkeypatch):
    # As Debian names a machine in its /etc/hosts; others know the name by another address.
    monkeypatch.setattr(addresses, "addresses_of", lambda host: {"127.0.1.1"})
    elsewhere = Interface("eth1", ("192.0.2.1",))
    for interface in (None, elsewhere):
        with listen("vm", 0, only_here=True, interface=interface) as listener:
            assert listener.getsockname()[0] == "127.0.1.1"
    with listen("vm", 0) as listener:
        assert is_reached("127.0.0.1", listener.getsockname()[1])


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


@pytest.mark.parametrize("host", ["a..b", ".foo", "x" * 64, "a." + "x" * 64 + ".b", "\udc80"])
def test_law_10_a_host_that_cannot_be_looked_up_is_named(host):
    with pytest.raises(MembershipError, match=r"' cannot be a host; allowed are parts of 1 to 63"):
        split_address(f"{host}:1")


@pytest.mark.parametrize(
    "host", ["10.0.0.1", "[::1]", "[fe80::1%eth0.100]", "a.example.", "bücher.example", "x" * 63]
)
def test_addresses_and_names_may_be_hosts(host):
    assert split_address(f"{host}:1") == (host.strip("[]"), 1)


@pytest.mark.parametrize("outgoing", ["32768\t60999\n", "10000 60000", "1024 65535", "none", None])
def test_ports_are_free_and_no_outgoing_connections(monkeypatch, tmp_path, outgoing):
    file = tmp_path / "ip_local_port_range"
    monkeypatch.setattr(addresses, "_OUTGOING", file)
    if outgoing:
        file.write_text(outgoing)
    found = unreserved_ports(20)
    assert len({*found}) == 20
    for port in found:
        socket.create_server(("", port)).close()
    first, last = map(int, outgoing.split()) if outgoing and outgoing != "none" else (49152, 65535)
    if (first, last) == (1024, 65535):
        first, last = 0, 9999  # all are outgoing: any port above those of services will do
    assert not any(first <= port <= last for port in found)


def test_an_address_of_another_machine_has_no_free_port():
    with pytest.raises(OSError, match="1 free ports are needed; only 0 were found"):
        unreserved_ports(1, "192.0.2.1")


def test_ports_at_which_somebody_listens_are_not_found(monkeypatch):
    two = unreserved_ports(2)
    monkeypatch.setattr(addresses, "_candidate_ports", lambda: [*two])
    with socket.create_server(("127.0.0.1", two[0])):
        assert unreserved_ports(1) == two[1:]
        with pytest.raises(OSError, match="2 free ports are needed; only 1 were found"):
            unreserved_ports(2)


def test_one_process_listens_at_a_reserved_port_which_nobody_finds(monkeypatch):
    with reserved_ports(1, "127.0.0.1") as reserved:
        monkeypatch.setattr(addresses, "_candidate_ports", lambda: [*reserved])
        for host in ("", "127.0.0.1"):
            with pytest.raises(OSError, match="only 0 were found"):
                unreserved_ports(1, host)
        with listen("127.0.0.1", reserved[0]), pytest.raises(PortError, match="already in use"):
            listen("127.0.0.1", reserved[0])
    assert unreserved_ports(1) == reserved


def test_ports_are_not_reserved_where_that_would_keep_the_others_from_listening(monkeypatch):
    monkeypatch.setattr(addresses.sys, "platform", "darwin")
    with reserved_ports(1, "127.0.0.1") as (port,), socket.socket() as other:
        other.bind(("127.0.0.1", port))
        assert other.getsockname() == ("127.0.0.1", port)
