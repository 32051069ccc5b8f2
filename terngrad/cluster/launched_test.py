"""Processes of a launcher connect; here they are threads of this process."""

import socket
import subprocess
import sys
import threading

import pytest

from terngrad.cluster import launched
from terngrad.cluster.addresses import Interface
from terngrad.testing.threads import TIMEOUT, assert_met, in_threads


class Gathering:
    """An all-gather between threads."""

    def __init__(self, count):
        self._barrier = threading.Barrier(count)
        self._objects = [None] * count

    def of(self, rank):
        def gather(mine):
            self._objects[rank] = mine
            self._barrier.wait(TIMEOUT)
            found = list(self._objects)
            self._barrier.wait(TIMEOUT)
            return found

        return gather


@pytest.mark.parametrize("machines", [1, 3])
def test_all_processes_connect(monkeypatch, machines):
    networks = iter([f"network {i % machines}" for i in range(3)])
    monkeypatch.setattr(launched, "_network", lambda: next(networks))
    gathering = Gathering(3)
    calls = (lambda r=r: launched.join(r, gathering.of(r), TIMEOUT) for r in range(3))
    results = in_threads(*calls)
    assert [hosts for hosts, _ in results] == [[socket.gethostname()] * 3] * 3
    assert_met([peers for _, peers in results])


def test_processes_of_several_machines_connect_at_the_chosen_interface(monkeypatch):
    networks = iter(["here", "there"])
    monkeypatch.setattr(launched, "_network", lambda: next(networks))
    gathering, interface = Gathering(2), Interface("other", ("127.0.0.3",))
    join = lambda rank: launched.join(rank, gathering.of(rank), TIMEOUT, interface)
    peers = [peers for _, peers in in_threads(lambda: join(0), lambda: join(1))]
    assert_met(peers)
    assert peers[1][0].channel._socket.getpeername()[0] == "127.0.0.3"


def test_a_machine_whose_name_does_not_resolve_is_found_at_its_addresses(monkeypatch):
    found = launched._own_addresses()
    if not found:
        pytest.skip("this machine has a loopback address only")
    networks = iter(["here", "there"])
    monkeypatch.setattr(launched, "_network", lambda: next(networks))
    monkeypatch.setattr(launched.socket, "gethostname", lambda: "no-such-host.invalid")
    gathering = Gathering(2)
    results = in_threads(*(lambda r=r: launched.join(r, gathering.of(r), TIMEOUT) for r in (0, 1)))
    assert_met([peers for _, peers in results])


def test_a_process_that_never_gathers_does_not_keep_the_others_for_ever():
    code = (
        "import time; from terngrad.cluster import launched; "
        "launched.join(1, lambda mine: time.sleep(1000), 0.5)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT
    )
    assert done.returncode == 1
    assert done.stderr == "worker 1 ends: not all workers joined within 0.5 s\n"


@pytest.mark.parametrize(
    ("size", "environment", "expected"),
    [
        (2, {"PMI_SIZE": "2"}, ""),
        (2, {}, ""),  # the launcher does not say how many it started
        (1, {"PMI_SIZE": "1"}, ""),
        (1, {}, "no launcher started this process"),
        (1, {"OMPI_COMM_WORLD_SIZE": "2"}, "2 processes were started, but this one sees 1"),
        (2, {"HOROVOD_SIZE": "3"}, "3 processes were started, but this one sees 2"),
    ],
)
def test_law_10_processes_that_each_were_started_alone_are_reported(size, environment, expected):
    assert launched.why_incomplete(size, environment) == expected
