"""The threads of a ps: all start before it listens."""

import contextlib
import os
import resource
import socket
import subprocess
import sys
import textwrap
import threading

import pytest

from terngrad.cluster import addresses
from terngrad.connect import streams
from terngrad.connect.config import ConnectConfig
from terngrad.connect.introduction import Hello
from terngrad.connect.log_limiter import LogLimiter
from terngrad.testing.addresses import free_addresses
from terngrad.testing.limits import HANG_SECS


def test_a_pool_starts_no_thread_after_it_was_made(monkeypatch):
    with streams._started_pool(5) as pool:
        monkeypatch.setattr(threading.Thread, "start", _refuse)
        together = threading.Barrier(5)
        assert sorted(pool.map(lambda i: together.wait(HANG_SECS) * 0 + i, range(5))) == [*range(5)]


def test_law_10_a_ps_without_the_threads_that_it_needs_says_so(monkeypatch):
    start, started = threading.Thread.start, []

    def start_two(thread):
        if len(started) == 2:
            _refuse(thread)
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_two)
    text = r"a ps needs 5 threads for its workers' streams: can't start new thread \(ulimit -u, or"
    with pytest.raises(ValueError, match=text):
        streams._started_pool(5)
    for thread in started:
        thread.join(HANG_SECS)
        assert not thread.is_alive()


@pytest.mark.parametrize("only_here", [False, True])
def test_a_ps_listens_where_its_configuration_says(monkeypatch, only_here):
    monkeypatch.setattr(addresses, "addresses_of", lambda host: {"127.0.1.1"})  # a loopback name
    config = ConnectConfig(["one:1"], 0, ["vm:1"], only_here=only_here)
    served = streams.Streams(config, {}, LogLimiter(print), longest=1, threads=1)
    port = served.start(f"vm:{free_addresses(1)[0].rpartition(':')[2]}")
    try:
        socket.create_connection(("127.0.1.1", port), HANG_SECS).close()
        with contextlib.nullcontext() if not only_here else pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), HANG_SECS).close()
    finally:
        served.close()


def test_a_stream_that_is_opened_while_a_ps_ends_is_cut():
    open_stream = lambda worker, channel: [lambda: [*channel]]
    hello = Hello("Exchange", 0, 0, ["one:1"], ["ps:1"])
    config = ConnectConfig(["one:1"], 0, ["ps:1"], 4 * HANG_SECS)
    served = streams.Streams(config, {}, LogLimiter(print), longest=1, threads=1)
    served.start(*free_addresses(1))
    with socket.create_server(("127.0.0.1", 0)) as server:
        caller = socket.create_connection(server.getsockname(), HANG_SECS)
        serve = served._open(open_stream, hello, server.accept()[0], "127.0.0.1")
        served._pool.shutdown = lambda wait: None  # not yet
        served.close()
        serve()
        assert caller.recv(1) == b""
        caller.close()


def _refuse(thread):
    raise RuntimeError("can't start new thread")


def _run(program: str) -> list[str]:
    command = [sys.executable, "-c", textwrap.dedent(program)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    return done.stdout.split()


def test_the_soft_limit_rises_to_the_hard_one_and_no_further():
    said = _run("""
        import resource
        from terngrad.connect import streams
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 300))
        streams.raise_open_files_limit()
        print(*resource.getrlimit(resource.RLIMIT_NOFILE))
        print(streams.max_connections(1000, 10) <= 300 - 64)
        resource.setrlimit(resource.RLIMIT_NOFILE, (70, 70))
        try:
            streams.max_connections(1000, 10)
        except ValueError as error:
            print(error)
    """)
    assert said[:3] == ["300", "300", "True"]
    assert " ".join(said[3:]).startswith("the limit of open files (ulimit -n) is 70; allowed is ")


def test_connections_that_fit_are_not_limited():
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == resource.RLIM_INFINITY or streams.max_connections(8, 4) == 8
