"""The faults that a proxy makes, seen from both ends of a connection."""

import errno
import socket
import threading

import pytest

from terngrad.cluster.addresses import split_address
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.proxy import Fault, FaultKind, Proxy

SENT = bytes(range(200))


def transferred(fault, *, twice=False):
    """What arrives of SENT at a server, and what arrives of its answer, SENT reversed."""
    arrived = []

    def serve(listener):
        for _ in range(2 if twice else 1):
            connection, _ = listener.accept()
            with connection:
                arrived.append(exchanged(connection, SENT[::-1]))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        host, port = listener.getsockname()
        with Proxy(f"{host}:{port}", [fault]) as proxy:
            for _ in range(2 if twice else 1):
                with socket.create_connection(split_address(proxy.address)) as client:
                    answer = exchanged(client, SENT, ends=True)
            thread.join(HANG_SECS)
            assert proxy.connections == (2 if twice else 1)
    return arrived[-1], answer


def exchanged(connection, sent, *, ends=False):
    """Sends, then returns all that arrives until the end; None = the connection was cut."""
    connection.settimeout(HANG_SECS)
    found = b""
    try:
        connection.sendall(sent)
        if ends:
            connection.shutdown(socket.SHUT_WR)
        while data := connection.recv(1 << 16):
            found += data
    except OSError as error:
        if error.errno in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN):
            return None
        raise
    return found


@pytest.mark.parametrize("to_server", [True, False])
def test_one_bit_changes_in_one_direction(to_server):
    arrived, answer = transferred(Fault(FaultKind.CORRUPT, to_server, 7, 3))
    disturbed, other = (arrived, answer[::-1]) if to_server else (answer[::-1], arrived)
    at = 7 if to_server else len(SENT) - 8
    assert other == SENT
    assert [i for i in range(len(SENT)) if disturbed[i] != SENT[i]] == [at]
    assert disturbed[at] ^ SENT[at] == 8


def test_both_sides_of_a_connection_that_is_cut_notice_it():
    arrived, answer = transferred(Fault(FaultKind.CUT, True, 0, 0))
    assert arrived in (b"", None) and answer != SENT


def test_connections_beyond_the_plan_are_not_disturbed():
    assert transferred(Fault(FaultKind.CUT, True, 0, 0), twice=True) == (SENT, SENT[::-1])
