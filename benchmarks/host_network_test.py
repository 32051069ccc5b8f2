"""Hosts on one machine reach each other, as fast as they are allowed to."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import host_network
from inception.cluster.namespaces import SCRIPT
from terngrad.testing.limits import HANG_SECS

LISTEN = "import socket; s = socket.create_server(('', 2222)); s.accept()[0].recv(1)"
REACH = """
import socket, sys, time
deadline = time.monotonic() + 20
while True:
    try:
        socket.create_connection(("10.77.0.1", 2222), 5).send(b"x")
        break
    except OSError:
        if time.monotonic() > deadline:
            raise
        time.sleep(0.05)
"""


def script(*arguments, **environment):
    return subprocess.run(
        ["bash", SCRIPT, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=HANG_SECS,
        check=False,
    )


def names():
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return [line.split()[0] for line in listed.stdout.splitlines()]


def test_hosts_reach_each_other_and_are_gone_afterwards(has_networks):
    with host_network.network(2) as network:
        assert {f"{network.name}-0", f"{network.name}-1"} <= set(names())
        network.run_programs([[sys.executable, "-c", code] for code in (LISTEN, REACH)], 60)
    assert not [name for name in names() if name.startswith(network.name)]


def test_a_rate_limits_both_ends_of_a_cable_and_can_be_lifted(has_networks):
    with host_network.network(2) as network:
        ends = [("exec", f"{network.name}-1", "eth0"), ("exec", f"{network.name}-br", "port1")]

        def disciplines():
            return [
                subprocess.check_output(
                    ["ip", "netns", *end[:2], "tc", "qdisc", "show", "dev", end[2]], text=True
                )
                for end in ends
            ]

        network.shape("100mbit")
        assert all("tbf" in text and "rate 100Mbit" in text for text in disciplines())
        network.shape(host_network.UNSHAPED)
        assert not any("tbf" in text for text in disciplines())


def test_a_program_that_fails_is_named_with_what_it_printed_and_ends_the_others(has_networks):
    bad = [sys.executable, "-c", "raise SystemExit('no such thing')"]
    endless = [sys.executable, "-c", "import time; time.sleep(1000)"]
    with (
        host_network.network(2) as network,
        pytest.raises(ValueError, match=r"(?s)processes .*\[1\] no such thing"),
    ):
        network.run_programs([endless, bad], 60)


def test_servers_last_as_long_as_their_block_and_show_their_output_when_it_fails(has_networks):
    server = [sys.executable, "-uc", f"print('I serve'); {LISTEN}; s.accept()"]
    reach_other = REACH.replace("10.77.0.1", "10.77.0.2")
    bad = [sys.executable, "-c", f"{reach_other}\nraise SystemExit('no more')"]
    with host_network.network(2) as network:
        with (
            pytest.raises(ValueError, match=r"(?s)\[0\] no more.*\[1\] I serve"),
            network.serving([server], 1) as processes,
        ):
            assert Path("/proc", str(processes[0])).exists()
            network.run_programs([bad], 60)
        assert not Path("/proc", str(processes[0])).exists()


def test_programs_that_take_too_long_are_ended(has_networks):
    endless = [sys.executable, "-c", "import time; time.sleep(1000)"]
    with (
        host_network.network(1) as network,
        pytest.raises(ValueError, match=r"processes \[0\] failed or took over 1 s"),
    ):
        network.run_programs([endless], 1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("up", "0"), "the number of hosts N must be 1 to 99, got '0'"),
        (("cable", "1", "left"), "cable needs a host and up or down, got '1 left'"),
        (("fly",), "needs 'up N', 'rate N RATE', 'cable I up|down', 'run I COMMAND...' or 'down'"),
    ],
)
def test_law_10_wrong_arguments_are_named(has_networks, arguments, message):
    done = script(*arguments)
    assert done.returncode == 1
    assert done.stderr.startswith("network.sh: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_law_10_a_machine_that_cannot_have_hosts_is_named(monkeypatch, tmp_path):
    for tool in ("bash", "basename"):  # and neither ip nor tc
        (tmp_path / tool).symlink_to(Path("/bin", tool).resolve())
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        pytest.raises(ValueError, match=r"network\.sh: needs ip and tc \(iproute2\)"),
        host_network.network(2),
    ):
        pass
