"""Sockets between all processes: which process gets one, and which does not."""

import contextlib
import socket
import threading
import time

import pytest

from terngrad.cluster.addresses import split_address
from terngrad.cluster.errors import MembershipError, PortError
from terngrad.cluster.peer_sockets import PeerSockets
from terngrad.connect import listener
from terngrad.connect.calling import connect
from terngrad.connect.config import ConnectConfig
from terngrad.testing.addresses import free_addresses
from terngrad.testing.limits import HANG_SECS

TIMEOUT_SECS = HANG_SECS


@contextlib.contextmanager
def opened(hosts, tokens, timeout_secs=TIMEOUT_SECS):
    """The sockets of all processes; process i believes in token i."""
    with contextlib.ExitStack() as stack:
        found = []
        for rank, token in enumerate(tokens):
            found.append(PeerSockets(ConnectConfig(hosts, rank, (), timeout_secs), token))
            stack.callback(found[-1].close)
        yield found


def connected(peers, elastic=False):
    """What `connect`, or `reach`, returns or raises for each process."""
    found = [None] * len(peers)

    def connect_one(rank):
        try:
            found[rank] = peers[rank].reach(bool) if elastic else peers[rank].connect()
        except MembershipError as error:
            found[rank] = error

    threads = [threading.Thread(target=connect_one, args=(rank,)) for rank in range(len(peers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * TIMEOUT_SECS)
    return found


def close(sockets):
    for each in sockets.values():
        each.close()


def test_each_process_gets_a_socket_to_each_other(capfd):
    hosts = free_addresses(4)
    with opened(hosts, [b"secret"] * 4) as peers:
        # Unknown callers: silent, garbage, another service, one that looks and goes.
        callers = [socket.create_connection(split_address(host)) for host in hosts[:3]]
        callers[1].sendall(b"\0" * 100)
        callers[2].sendall(b"GET / HTTP/1.0\r\n\r\n")
        socket.create_connection(split_address(hosts[0])).close()
        found = connected(peers)
        for rank, sockets in enumerate(found):
            assert sorted(sockets) == [i for i in range(4) if i != rank]
            for other, each in sockets.items():
                each.sendall(bytes([rank, other]))
        for rank, sockets in enumerate(found):
            for other, each in sockets.items():
                assert each.recv(2) == bytes([other, rank])
                # One that compiles its first step reads nothing, and is alive.
                level, option = socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT
                assert each.getsockopt(level, option) == 0
                assert each.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        for unknown in callers:
            unknown.close()
        # The port stays open, so that the others can see that it is reachable.
        socket.create_connection(split_address(hosts[3]), TIMEOUT_SECS).close()
        for sockets in found:
            close(sockets)
    said = capfd.readouterr().err
    assert f"{hosts[1]}: Refused 127.0.0.1: it did not introduce itself" in said
    assert f"{hosts[2]}: Refused 127.0.0.1: it did not introduce itself" in said


def test_a_process_with_another_token_gets_no_socket_and_is_named():
    hosts = free_addresses(2)
    with opened(hosts, [b"secret", b"guess"], 1.0) as peers:
        chief, other = connected(peers)
    assert str(chief) == f"worker 1 ({hosts[1]}) did not connect to this worker"
    assert str(other).startswith(f"worker 0 ({hosts[0]}) cannot be reached: ")


@pytest.mark.parametrize("elastic", [False, True])
def test_a_connection_that_ends_before_its_welcome_arrives_is_replaced(elastic):
    hosts = free_addresses(2)
    with opened(hosts, [b"secret"] * 2) as (chief, other):
        config, deadline = other._config, time.monotonic() + TIMEOUT_SECS
        lost, _ = connect(config, split_address(hosts[0]), config.hello("Mesh", 0), deadline)
        lost.close()
        found = connected([chief, other], elastic)
        found[1][0].sendall(b"hello")
        assert found[0][1].recv(5) == b"hello"
        for sockets in found:
            close(sockets)


def test_a_taken_port_is_named():
    (host,) = free_addresses(1)
    with socket.create_server(split_address(host)), pytest.raises(PortError, match=host):
        PeerSockets(ConnectConfig([host], 0), b"secret")


def test_silent_unknown_callers_are_rejected_and_bounded(monkeypatch):
    monkeypatch.setattr(listener, "_INTRODUCTION_SECS", 0.5)
    hosts = free_addresses(2)
    with opened(hosts, [b"secret"] * 2) as peers, contextlib.ExitStack() as stack:
        address = split_address(hosts[0])
        crowd = [stack.enter_context(socket.create_connection(address)) for _ in range(100)]
        found = connected(peers)
        assert all(isinstance(sockets, dict) for sockets in found)
        for unknown in crowd:
            unknown.settimeout(TIMEOUT_SECS)
            assert unknown.recv(1) == b""
        for sockets in found:
            close(sockets)
