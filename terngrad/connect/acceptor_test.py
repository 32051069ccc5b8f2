"""What becomes of callers at a port that anybody can reach."""

import contextlib
import socket
import time

import pytest

from terngrad.connect import acceptor as acceptors
from terngrad.connect.acceptor import Acceptor, greeting_of_size
from terngrad.testing.limits import HANG_SECS

SECS = HANG_SECS


@contextlib.contextmanager
def accepting(greet, **settings):
    """Yields a function that connects, and the logged lines."""
    listening, reported = socket.create_server(("127.0.0.1", 0)), []
    address = listening.getsockname()
    settings = {"max_connections": 2, "timeout_secs": SECS} | settings
    acceptor = Acceptor(listening, greet, reported.append, **settings)
    acceptor.start()
    with contextlib.ExitStack() as stack:
        stack.callback(acceptor.close)

        def call(host="127.0.0.1"):
            connected = socket.create_connection(address, SECS, (host, 0))
            return stack.enter_context(connected)

        yield call, reported


def is_ended(caller):
    """Waits for a byte or the end; returns whether it was the end."""
    try:
        return caller.recv(1) == b""
    except ConnectionResetError:
        return True


def answer(connection, hello):
    connection.sendall(b"1")
    return hello == b"hello"


def test_a_connection_is_handed_over_with_its_hello_and_no_byte_more():
    taken = []
    with accepting(greeting_of_size(5, lambda *both: not taken.append(both))) as (call, _):
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


def test_a_greeting_asks_for_more_and_answers():
    def greet(caller):
        size = int(bytes((yield 1)))
        caller.connection.sendall((yield size))
        return (yield 2) == b"ok"

    with accepting(greet) as (call, _):
        for last in (b"ok", b"no"):
            caller = call()
            caller.sendall(b"3abc")
            assert caller.recv(3) == b"abc"
            caller.sendall(last)
            if last == b"no":
                assert is_ended(caller)


def test_the_oldest_caller_makes_room_and_a_late_one_is_disconnected():
    with accepting(greeting_of_size(5, answer)) as (call, _):
        oldest, *others = [call() for _ in range(3)]
        assert is_ended(oldest)
        for each in others:
            each.sendall(b"hello")
            assert each.recv(1) == b"1"
    with accepting(greeting_of_size(5, answer), timeout_secs=0.05) as (call, _):
        assert is_ended(call())


def test_one_address_cannot_take_the_places_of_all_callers():
    with accepting(greeting_of_size(5, answer), max_connections=10, max_per_address=2) as (call, _):
        other = call("127.0.0.3")
        flood = [call("127.0.0.2") for _ in range(6)]
        for each in flood[:4]:
            assert is_ended(each)
        for each in (other, *flood[4:]):
            each.sendall(b"hello")
            assert each.recv(1) == b"1"


def test_a_caller_that_leaves_before_its_hello_is_rejected_but_not_a_late_one():
    rejected = []
    settings = {"on_rejected": lambda caller: rejected.append(caller.address), "max_connections": 1}
    with accepting(greeting_of_size(5, answer), **settings) as (call, _):
        for said in (b"", b"hel"):
            leaving = call()
            leaving.sendall(said)
            leaving.shutdown(socket.SHUT_WR)
            assert is_ended(leaving)
        first, _ = call(), call()
        assert is_ended(first)
    assert rejected == ["127.0.0.1"] * 2


def test_a_rejected_caller_reads_why_even_if_it_has_sent_more(monkeypatch):
    monkeypatch.setattr(acceptors, "_LEAVE_SECS", SECS)

    def greet(caller):
        yield 1
        caller.connection.sendall(b"why")
        return False

    with accepting(greet) as (call, _):
        caller = call()
        caller.sendall(bytes(1 << 18))
        assert caller.recv(10) == b"why"
        assert is_ended(caller)
        caller.shutdown(socket.SHUT_WR)


def test_a_caller_that_stays_after_it_was_rejected_is_disconnected(monkeypatch):
    monkeypatch.setattr(acceptors, "_LEAVE_SECS", 0.05)
    with accepting(greeting_of_size(1, lambda *both: False), max_connections=1) as (call, _):
        caller, is_over, deadline = call(), False, time.monotonic() + SECS
        while not is_over and time.monotonic() < deadline:
            try:
                caller.sendall(b"x")
            except OSError:
                is_over = True
            time.sleep(0.01)
        assert is_over


def test_on_poll_is_called_repeatedly():
    polls = []
    with accepting(greeting_of_size(1, answer), on_poll=lambda: polls.append(1)):
        deadline = time.monotonic() + SECS
        while len(polls) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.parametrize("error", [OSError("full"), RuntimeError("can't start new thread")])
def test_an_error_ends_one_connection_only_and_is_reported_once(error, monkeypatch):
    monkeypatch.setattr(acceptors, "_PAUSE_SECS", SECS)  # for which nobody else must wait

    def take(connection, hello):
        if hello == b"wrong":
            raise error
        return answer(connection, hello)

    with accepting(greeting_of_size(5, take)) as (call, reported):
        for _ in range(2):
            wrong = call()
            wrong.sendall(b"wrong")
            assert is_ended(wrong)
        right = call()
        right.sendall(b"hello")
        assert right.recv(1) == b"1"
        assert reported == [f"Connections cannot be accepted: {error}"]
