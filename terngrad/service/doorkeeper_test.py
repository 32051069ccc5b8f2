"""What becomes of connections whose callers do not introduce themselves."""

import contextlib
import errno
import os
import socket
import time

import pytest

from terngrad.service import doorkeeper
from terngrad.service.doorkeeper import Doorkeeper
from terngrad.service.log_limiter import LogLimiter
from terngrad.testing.limits import HANG_SECS


class _Door:
    """A listener of this process, its connections, and a doorkeeper that looks on demand."""

    def __init__(self, stack, **settings):
        self.now, self.lines = 0.0, []
        self.listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.port = self.listener.getsockname()[1]
        log = LogLimiter(self.lines.append)
        self.keeper = Doorkeeper(log, clock=lambda: self.now, **settings)
        self._stack = stack

    def call(self, host="127.0.0.1"):
        """Connects from a host; returns the caller's side."""
        caller = self._stack.enter_context(
            socket.create_connection(("127.0.0.1", self.port), source_address=(host, 0))
        )
        self._stack.enter_context(self.listener.accept()[0])
        caller.settimeout(HANG_SECS)
        return caller

    def look(self):
        self.keeper._look(self.port)


def _is_open(caller):
    caller.setblocking(False)
    try:
        return bool(caller.recv(1))
    except BlockingIOError:
        return True


def test_a_caller_who_is_not_admitted_in_time_is_disconnected():
    with contextlib.ExitStack() as stack:
        door = _Door(stack, patience_secs=10.0)
        member, silent = door.call(), door.call()
        door.look()
        door.keeper.admit(f"ipv4:127.0.0.1:{member.getsockname()[1]}")
        door.now = 9.9
        door.look()
        assert _is_open(silent)
        door.now = 10.0
        door.look()
        assert [_is_open(member), _is_open(silent)] == [True, False]
        assert door.lines == [
            "Ended 1 connections from 127.0.0.1 that did not introduce themselves."
        ]


def test_a_host_has_a_share_of_the_callers_who_wait():
    with contextlib.ExitStack() as stack:
        door = _Door(stack, most_of_a_host=3)
        flood = []
        for _ in range(10):
            flood.append(door.call("127.0.0.2"))
            door.look()
            door.now += 0.01
        other = door.call("127.0.0.3")
        door.look()
        assert [_is_open(each) for each in flood] == [False] * 7 + [True] * 3
        assert _is_open(other)
        assert len(door.lines) == 1


def test_workers_that_join_at_once_from_one_host_are_not_too_many():
    with contextlib.ExitStack() as stack:
        door = _Door(stack, workers=5, most_of_a_host=3)
        callers = [door.call() for _ in range(9)]
        door.look()
        assert [_is_open(each) for each in callers].count(False) == 1


def test_a_caller_who_is_admitted_while_the_doorkeeper_looks_stays(monkeypatch):
    with contextlib.ExitStack() as stack:
        door = _Door(stack, patience_secs=0.0)
        member = door.call()
        end = door.keeper._end_stranger

        def admit_first(descriptor, peer):
            door.keeper.admit(f"ipv4:127.0.0.1:{member.getsockname()[1]}")
            return end(descriptor, peer)

        monkeypatch.setattr(door.keeper, "_end_stranger", admit_first)
        door.look()
        assert _is_open(member) and not door.lines


def test_an_admitted_caller_stays_when_there_is_no_descriptor_to_look_with(monkeypatch):
    with contextlib.ExitStack() as stack:
        door = _Door(stack, patience_secs=10.0)
        member = door.call()
        door.look()
        door.keeper.admit(f"ipv4:127.0.0.1:{member.getsockname()[1]}")
        for name in ("dup", "listdir"):
            with monkeypatch.context() as patched:
                patched.setattr(doorkeeper.os, name, _no_descriptor)
                door.look()
        for door.now in (20.0, 40.0):
            door.look()
        assert _is_open(member) and not door.lines


def _no_descriptor(*arguments):
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:192.0.2.7:5000", ("192.0.2.7", 5000)),
        ("ipv6:%5B::1%5D:5000", ("::1", 5000)),
        ("ipv6:%5Bfe80::1%253%5D:5000", ("fe80::1", 5000)),  # the socket knows no interface
        ("unix:/tmp/socket", None),
    ],
)
def test_the_names_that_grpc_gives_to_callers(peer, address):
    assert doorkeeper._address(peer) == address


def test_the_thread_looks_by_itself_until_it_is_closed():
    with contextlib.ExitStack() as stack:
        door = _Door(stack, patience_secs=0.0)
        caller = door.call()
        door.keeper.watch(door.port)
        assert caller.recv(1) == b""
        door.keeper.close()
        late = door.call()
        time.sleep(0.7)  # longer than between two looks
        assert _is_open(late)
