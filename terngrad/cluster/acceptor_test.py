"""What becomes of callers at a port that anybody can reach."""

import contextlib
import socket

import pytest

from terngrad.cluster.acceptor import Acceptor
from terngrad.testing.limits import HANG_SECS

SECS = HANG_SECS


@contextlib.contextmanager
def accepting(take, **settings):
    """Yields a function that connects, and the lines that were told."""
    listening, told = socket.create_server(("127.0.0.1", 0)), []
    address = listening.getsockname()
    settings = {"most": 2, "timeout_secs": SECS} | settings
    acceptor = Acceptor(listening, 5, take, told.append, **settings)
    acceptor.start()
    with contextlib.ExitStack() as stack:
        stack.callback(acceptor.close)
        yield lambda: stack.enter_context(socket.create_connection(address, SECS)), told


def is_ended(caller):
    """Waits for a byte or the end."""
    try:
        return caller.recv(1) == b""
    except ConnectionResetError:
        return True


def answer(connection, hello):
    connection.sendall(b"1")
    return hello == b"hello"


def test_a_connection_is_handed_over_with_its_hello_and_no_byte_more():
    taken = []
    with accepting(lambda *both: not taken.append(both)) as (call, _):
        caller = call()
        for part in (b"he", b"llo, world"):
            caller.sendall(part)
        while not taken:
            pass
        connection, hello = taken[0]
        connection.setblocking(True)
        assert hello == b"hello"
        with connection:
            assert connection.recv(7) == b", world"


def test_the_oldest_makes_room_and_who_is_late_is_ended():
    with accepting(answer) as (call, _):
        oldest, *others = [call() for _ in range(3)]
        assert is_ended(oldest)
        for each in others:
            each.sendall(b"hello")
            assert each.recv(1) == b"1"
    with accepting(answer, timeout_secs=0.05) as (call, _):
        assert is_ended(call())


def test_who_says_something_else_is_ended_at_once_and_told_from_the_silent():
    rejected = []
    may_begin = lambda received: received[:1] == b"h"
    settings = {"may_begin": may_begin, "on_rejected": rejected.append}
    with accepting(answer, **settings) as (call, _):
        silent, other = call(), call()
        other.sendall(b"H")
        assert is_ended(other)
        silent.shutdown(socket.SHUT_WR)
        assert is_ended(silent)
        late = call()
        late.sendall(b"hello")
        assert late.recv(1) == b"1"
    assert rejected == [False, True]


@pytest.mark.parametrize("error", [OSError("full"), RuntimeError("can't start new thread")])
def test_an_error_ends_one_connection_only_and_is_told_once(error):
    def take(connection, hello):
        if hello == b"wrong":
            raise error
        return answer(connection, hello)

    with accepting(take) as (call, told):
        for _ in range(2):
            wrong = call()
            wrong.sendall(b"wrong")
            assert is_ended(wrong)
        right = call()
        right.sendall(b"hello")
        assert right.recv(1) == b"1"
        assert told == [f"Connections cannot be accepted: {error}"]
