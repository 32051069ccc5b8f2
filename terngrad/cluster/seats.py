"""Connects each process of a training with each other: one socket for each pair.

A process listens at its own host and connects to all of lower rank. Both show that they have the
training's token, so that no other program gets a seat. Programs that connect without it, or stay
silent, are sent away and disturb nobody.
"""

from __future__ import annotations

import hashlib
import hmac
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Sequence

from terngrad.cluster.addresses import listen
from terngrad.cluster.channel import MembershipError, name_of, split_address
from terngrad.cluster.silence import end_if_silent

_MAGIC = b"terngrad mesh 3\n"
_HELLO = struct.Struct("<16sI32s")  # magic, rank, proof
_PROOF_BYTES = 32
_CALL_SECS = 2.0
_RETRY_SECS = 0.1
_STRANGER_SECS = 5.0  # for a whole introduction
_MOST_STRANGERS = 64  # besides one for each process


class Seats:
    """The sockets of this process. As a context manager it closes its port."""

    def __init__(self, hosts: Sequence[str], rank: int, token: bytes) -> None:
        """Listens for the processes of higher rank.

        Args:
          hosts: HOST:PORT of each process.
          rank: index of this process.
          token: secret that all of them share.

        Raises:
          PortError: this process cannot listen at its address.
        """
        self._hosts = hosts
        self._rank = rank
        self._token = token
        self._listener = listen(*split_address(hosts[rank]))
        self._listener.setblocking(False)
        self._taken: dict[int, socket.socket] = {}
        self._news = threading.Condition()
        self._over = False
        self._has_told = False
        self._waiting: dict[socket.socket, _Guest] = {}
        threading.Thread(target=self._serve, daemon=True).start()

    def fill(self, timeout_secs: float) -> dict[int, socket.socket]:
        """Returns a socket to each other process, by rank.

        Raises:
          MembershipError: names the processes that did not connect or cannot be reached in time.
        """
        deadline = time.monotonic() + timeout_secs
        mine = {rank: self._call(rank, deadline) for rank in range(self._rank)}
        higher = range(self._rank + 1, len(self._hosts))
        with self._news:
            everybody = lambda: self._taken.keys() >= set(higher)
            if not self._news.wait_for(everybody, max(0.0, deadline - time.monotonic())):
                absent = [name_of(r, self._hosts) for r in higher if r not in self._taken]
                raise MembershipError(f"{', '.join(absent)} did not connect to this worker")
            mine |= self._taken
        for each in mine.values():
            each.settimeout(None)
            end_if_silent(each, 2 * timeout_secs)  # a last resort: the processes watch each other
        return mine

    def close(self) -> None:
        """Closes the port."""
        self._over = True

    # ---- Calling the processes of lower rank --------------------------------

    def _call(self, rank: int, deadline: float) -> socket.socket:
        while True:
            try:
                return self._introduce(rank, deadline)
            except OSError as error:
                if time.monotonic() > deadline:
                    host = name_of(rank, self._hosts)
                    raise MembershipError(f"{host} cannot be reached: {error}") from None
            time.sleep(_RETRY_SECS)

    def _introduce(self, rank: int, deadline: float) -> socket.socket:
        called = socket.create_connection(split_address(self._hosts[rank]), _CALL_SECS)
        try:
            called.sendall(_HELLO.pack(_MAGIC, self._rank, self._proof(self._rank, rank)))
            called.settimeout(max(_CALL_SECS, deadline - time.monotonic()))
            answer = called.recv(_PROOF_BYTES, socket.MSG_WAITALL)
            if not hmac.compare_digest(answer, self._proof(rank, self._rank)):
                raise ConnectionError("the program at its port is not a worker of this training")
        except BaseException:
            called.close()
            raise
        return called

    def _proof(self, speaker: int, listener: int) -> bytes:
        """Shows that a process has the token, without telling it to a stranger."""
        text = "\n".join([f"{speaker} to {listener}", *self._hosts])
        return hmac.digest(self._token, text.encode(), hashlib.sha256)

    # ---- Receiving the processes of higher rank -----------------------------

    def _serve(self) -> None:
        with self._listener, selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._over:
                for key, _ in selector.select(_RETRY_SECS if self._waiting else 1.0):
                    if key.fileobj is self._listener:
                        self._accept(selector)
                    else:
                        self._hear(selector, key.fileobj)
                now = time.monotonic()
                for guest in [g for g in self._waiting.values() if g.until < now]:
                    self._send_away(selector, guest)
            for guest in self._waiting.values():
                guest.socket.close()

    def _accept(self, selector: selectors.BaseSelector) -> None:
        try:
            caller, _ = self._listener.accept()
        except OSError:  # it has gone, or there are too many open files
            return
        caller.setblocking(False)
        if len(self._waiting) >= len(self._hosts) + _MOST_STRANGERS:
            self._send_away(selector, next(iter(self._waiting.values())))
        self._waiting[caller] = _Guest(caller, time.monotonic() + _STRANGER_SECS)
        selector.register(caller, selectors.EVENT_READ)

    def _hear(self, selector: selectors.BaseSelector, caller: socket.socket) -> None:
        guest = self._waiting.get(caller)
        if guest is None:  # it was sent away in this turn
            return
        try:
            data = caller.recv(_HELLO.size - len(guest.said))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        guest.said += data
        if not data or not _MAGIC.startswith(guest.said[: len(_MAGIC)]):
            self._send_away(selector, guest)
        elif len(guest.said) == _HELLO.size:
            self._seat(selector, guest)

    def _seat(self, selector: selectors.BaseSelector, guest: _Guest) -> None:
        _, rank, proof = _HELLO.unpack(guest.said)
        is_expected = self._rank < rank < len(self._hosts) and rank not in self._taken
        if not is_expected or not hmac.compare_digest(proof, self._proof(rank, self._rank)):
            self._send_away(selector, guest)
            return
        selector.unregister(guest.socket)
        del self._waiting[guest.socket]
        guest.socket.setblocking(True)
        try:
            guest.socket.sendall(self._proof(self._rank, rank))
        except OSError:
            guest.socket.close()
            return
        with self._news:
            self._taken[rank] = guest.socket
            self._news.notify_all()

    def _send_away(self, selector: selectors.BaseSelector, guest: _Guest) -> None:
        selector.unregister(guest.socket)
        del self._waiting[guest.socket]
        is_silent = not guest.said and time.monotonic() < guest.until
        if not is_silent and not self._has_told:  # another worker that looks says nothing
            self._has_told = True
            host = self._hosts[self._rank]
            print(f"{host}: another program connects; it is ignored.", file=sys.stderr, flush=True)
        guest.socket.close()


class _Guest:
    """A connection without a seat."""

    def __init__(self, caller: socket.socket, until: float) -> None:
        self.socket = caller
        self.until = until
        self.said = b""
