"""Two hosts that two networks connect: the chosen interface carries what the workers exchange."""

import os
import subprocess
import sys

import pytest

from terngrad.cluster import interfaces
from terngrad.testing.addresses import free_ports
from terngrad.testing.processes import Started

LOOP = [sys.executable, "-m", "terngrad.testing.programs.elastic_loop"]
STEPS = 50
_INSECURE = {"TERNGRAD_ALLOW_INSECURE_NETWORK": "1"}
_FEW_BYTES, _MANY_BYTES = 1_000, 10_000
_COUNTER = "/sys/class/net/{}/statistics/tx_bytes"


class Hosts:
    """Two network namespaces, whose interfaces net0 and net1 have addresses 10.79.NET.HOST + 1."""

    def __init__(self):
        self.names = [f"two{os.getpid()}-{host}" for host in (0, 1)]

    def __enter__(self):
        for name in self.names:
            _ip("netns", "add", name)
            self.run(name, "sysctl", "-q", "-w", "net.ipv6.conf.all.disable_ipv6=1")
            _ip("-n", name, "link", "set", "lo", "up")
        first, second = self.names
        for net in (0, 1):
            peer = ("peer", "name", f"net{net}", "netns", second)
            _ip("-n", first, "link", "add", f"net{net}", "type", "veth", *peer)
            for host, name in enumerate(self.names):
                _ip("-n", name, "address", "add", f"10.79.{net}.{host + 1}/24", "dev", f"net{net}")
                _ip("-n", name, "link", "set", f"net{net}", "up")
        return self

    def __exit__(self, *error):
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)

    def run(self, name, *command):
        return subprocess.run(
            ["ip", "netns", "exec", name, *command], capture_output=True, text=True, check=True
        ).stdout

    def sent(self, net):
        """Bytes that the first host has sent over a network."""
        return int(self.run(self.names[0], "cat", _COUNTER.format(f"net{net}")))

    def started(self, host, environment, *arguments):
        command = ["ip", "netns", "exec", self.names[host], *LOOP, str(STEPS), *arguments]
        return Started(command, environment)


def _ip(*arguments):
    subprocess.run(["ip", *arguments], capture_output=True, check=True)


@pytest.fixture(name="hosts")
def _hosts(has_networks):
    with Hosts() as hosts:
        yield hosts


@pytest.mark.slow
@pytest.mark.parametrize(("net", "arguments"), [(0, ()), (1, ()), (1, ("elastic=1",))])
def test_workers_that_meet_on_one_network_exchange_over_the_chosen_one(hosts, net, arguments):
    (port,) = free_ports(1)
    master = {"MASTER_ADDR": f"10.79.{1 - net}.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    chosen = {interfaces.VARIABLE: f"net{net}"}
    environments = [_INSECURE | master | chosen | {"RANK": str(rank)} for rank in (0, 1)]
    with (
        hosts.started(0, environments[0], *arguments) as first,
        hosts.started(1, environments[1], *arguments) as second,
    ):
        first.wait_for(r"^step \d+$")
        sent_before = hosts.sent(1 - net)
        assert first.finish() == second.finish() == 0, first.output + second.output
        assert hosts.sent(1 - net) - sent_before < _FEW_BYTES
        assert hosts.sent(net) > _MANY_BYTES
    own = f"10.79.{net}.1"
    assert f"listens at {own} and connects from {own} of net{net}.\n" in first.output
    weights = {run.output.partition("weights ")[2].split()[0] for run in (first, second)}
    assert len(weights) == 1


@pytest.mark.slow
def test_law_10_a_worker_whose_host_lies_on_the_other_network_is_reported(hosts):
    (port,) = free_ports(1)
    addresses = [f"10.79.0.{host + 1}:{port}" for host in (0, 1)]
    given = {"TERNGRAD_HOSTS": ",".join(addresses), "TERNGRAD_RANK": "0"}
    given |= {"TERNGRAD_CONTROL_PORT": str(port + 1), interfaces.VARIABLE: "net1"}
    with hosts.started(0, _INSECURE | given) as run:
        assert run.finish() == 1
    assert run.lines[-1] == (
        "join: TERNGRAD_INTERFACE is 'net1': the others look for this process at 10.79.0.1, which "
        "net0 has: allowed is net0, or an address of net1 (10.79.1.1) in the list of hosts"
    )
