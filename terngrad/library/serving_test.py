"""A parameter server that holds the parameters, in your own program; signals end it."""

import contextlib
import os
import re
import signal
import socket
import sys
import threading
from types import SimpleNamespace

import pytest

from terngrad.asynchronous.client import Client
from terngrad.asynchronous.plan import read_proposal
from terngrad.cluster.addresses import listen, split_address
from terngrad.cluster.errors import PortError
from terngrad.library.serving import Asynchronous, say, start_at, stopped_by_signals
from terngrad.testing.addresses import free_addresses
from terngrad.testing.asynchronous import CONFIGURATION, PLAN
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.processes import Started
from terngrad.testing.ps_clients import config_of
from terngrad.training import schedules

WORKERS = ["127.0.0.1:1", "127.0.0.1:2"]
SERVER = """
import sys, terngrad
from terngrad.training import schedules
held = terngrad.Asynchronous(lambda text: schedules.fixed(0.1), folder=sys.argv[2])
workers = ["127.0.0.1:1", "127.0.0.1:2"]
terngrad.join(workers, rank=0, ps_hosts=[sys.argv[1]], job="ps", asynchronous=held)
raise SystemExit("the ps goes on")
"""


@pytest.mark.slow
def test_a_ps_that_holds_the_parameters_joins_serves_and_ends_through_join(tmp_path):
    (host,) = free_addresses(1)
    folder = str(tmp_path / "ps_0")
    command = [
        sys.executable,
        "-m",
        "terngrad.testing.programs.snippet",
        SERVER,
        host,
        str(tmp_path),
    ]
    with Started(command) as run:
        run.wait_for(r"ps 0 \(.*\) holds the parameters of 2 workers on this machine\.")
        with Started(command) as second:  # its port is taken, too
            assert second.finish() == 1
            why = f"join: asynchronous: folder is '{folder}': another ps, process {run.process.pid}"
            assert why in second.output
        configs = [config_of([host], rank, workers=WORKERS) for rank in (0, 1)]
        workers = [Client(config, [None], 32, CONFIGURATION) for config in configs]
        workers[0].enter()
        *_, size = read_proposal(PLAN.to_json().encode(), 0, 1, lambda text: schedules.fixed(0.1))
        workers[0].begin(PLAN, [bytes(size)], 0)
        workers[1].await_run()
        workers[0].leave(done=True, stop=True)
        workers[1].leave(done=True)
        assert run.finish() == 0, run.output
        for worker in workers:
            worker.close()
    assert re.search(r"ps 0 \(.*\) ends at step 0: ", run.output)
    assert [name for name in os.listdir(folder) if name.startswith("snapshot-")]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"snapshot_steps": -1}, "snapshot_steps is -1; allowed are integers from 0 on"),
        ({"snapshot_steps": 0.5}, r"snapshot_steps is 0\.5; allowed are integers from 0 on"),
        ({"snapshot": -2}, "snapshot is -2; allowed are integers from -1 on"),
        ({"folder": None}, "folder is None; allowed are paths and ''"),
        ({"read_schedule": "/tmp/a"}, "read_schedule is '/tmp/a'; allowed are functions and None"),
        ({"snapshot": 5}, "snapshot is 5; allowed is -1 without snapshots, which need folder and"),
        ({"snapshot": 5, "folder": "/tmp/a", "snapshot_steps": 0}, "snapshot is 5; allowed is -1"),
    ],
)
def test_law_10_settings_of_a_ps_that_cannot_be_are_named(settings, why):
    with pytest.raises(ValueError, match=f"^Asynchronous: {why}"):
        Asynchronous(**settings)


def test_a_signal_ends_a_ps_unless_it_is_ignored():
    ended = threading.Event()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stopped_by_signals(ended.set) as came:
            os.kill(os.getpid(), signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGTERM)
            assert ended.wait(HANG_SECS)
    finally:
        signal.signal(signal.SIGINT, before)
    assert came == [signal.SIGTERM]


def test_a_server_waits_for_the_port_of_the_one_before_it():
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:

        def start(address):
            tries.append(address)
            if len(tries) == 3:
                taken.close()
            listen(*split_address(address)).close()

        address, server = f"127.0.0.1:{taken.getsockname()[1]}", SimpleNamespace(start=start)
        tries = []
        with pytest.raises(PortError, match="Address already in use"):
            start_at(server, address, secs=0)
        start_at(server, address, HANG_SECS)
    assert tries == [address] * 3


def test_a_line_is_written_at_once_so_that_threads_do_not_join_theirs(monkeypatch):
    written = []
    out = SimpleNamespace(write=written.append, flush=lambda: None)
    monkeypatch.setattr(sys, "stdout", out)
    say("ps 0: begins")
    assert [text for text in written if text] == ["ps 0: begins\n"]
