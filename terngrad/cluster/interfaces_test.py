"""Which network interface a process uses, and what is said of it."""

import socket

import pytest

from terngrad.cluster import interfaces
from terngrad.cluster.addresses import Interface

MANAGEMENT = Interface("eth0", ("10.0.0.4",))
FAST = Interface("eth1", ("10.1.0.4", "fd00::4"))


@pytest.fixture(name="two")
def _two(monkeypatch):
    monkeypatch.setattr(interfaces, "found", lambda: [MANAGEMENT, FAST])
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "eth0"), (2, "eth1"), (3, "eth2")])


def test_the_loopback_interface_of_this_machine_is_found():
    (lo,) = (each for each in interfaces.found() if "127.0.0.1" in each.addresses)
    assert interfaces.named(lo.name) == lo
    assert not any(
        address.startswith("fe80") for each in interfaces.found() for address in each.addresses
    )


@pytest.mark.parametrize(
    ("name", "why"),
    [("eth7", "allowed are"), ("eth2", "it has no address; allowed are")],
)
def test_law_10_an_interface_that_cannot_be_used_is_reported_with_those_that_can(two, name, why):
    with pytest.raises(ValueError) as refusal:
        interfaces.named(name)
    assert str(refusal.value) == f"{why} eth0 (10.0.0.4), eth1 (10.1.0.4, fd00::4)"


def test_a_name_that_is_given_counts_before_the_variable(two):
    environment = {interfaces.VARIABLE: "eth0"}
    assert interfaces.chosen("eth1", environment) == FAST
    assert interfaces.chosen("", environment) == MANAGEMENT
    assert interfaces.chosen("", {}) is None


def test_a_process_tells_the_others_the_address_of_its_interface(two):
    assert interfaces.published("192.0.2.1", "eth1") == "10.1.0.4"
    assert interfaces.published("localhost", "eth1") == "127.0.0.1"
    assert interfaces.published("127.0.0.1", "", {}) == "127.0.0.1"


def test_law_10_a_process_that_others_look_for_at_another_interface_is_reported(two):
    reported = interfaces.why_cannot_listen(FAST, "10.0.0.4")
    assert reported == (
        "the others look for this process at 10.0.0.4, which eth0 has: allowed is eth0, or an "
        "address of eth1 (10.1.0.4, fd00::4) in the list of hosts"
    )
    for host in ("10.1.0.4", "fd00::4", "127.0.0.1", "192.0.2.1", "no-such-host.invalid"):
        assert interfaces.why_cannot_listen(FAST, host) == ""


def test_the_addresses_that_are_used_are_reported(two, monkeypatch):
    routes = {"10.1.0.5": "10.1.0.4", "10.0.0.5": "10.0.0.4"}
    monkeypatch.setattr(interfaces, "address_towards", routes.__getitem__)
    text = "listens at 10.1.0.4 and connects from 10.1.0.4, fd00::4 of eth1"
    assert interfaces.describe_use(FAST, "10.1.0.4", {"worker 1": "10.1.0.5"}) == text
    others = {"worker 1": "10.1.0.5", "worker 2": "10.0.0.5"}
    away = ", but packets to worker 2 leave by another interface"
    assert interfaces.describe_use(FAST, "10.1.0.4", others) == text + away
    assert interfaces.describe_use(MANAGEMENT, None, {}) == "connects from 10.0.0.4 of eth0"
    here = "uses loopback addresses, not eth0 (10.0.0.4): all processes are on this machine"
    assert interfaces.describe_use(MANAGEMENT, "127.0.0.1", {}) == here
    assert interfaces.describe_use(MANAGEMENT, None, {"ps 0": "localhost"}) == here
