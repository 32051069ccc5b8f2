"""Connects each process of a training with each other: one socket for each pair.

A process listens at its own host and connects to all of lower rank. Both show that they have the
training's token, so that no other program gets a seat. Programs that connect without it, or stay
silent, are sent away and disturb nobody.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import struct
import sys
import threading
import time
from collections.abc import Sequence

from terngrad.cluster.acceptor import Acceptor
from terngrad.cluster.addresses import listen
from terngrad.cluster.channel import MembershipError, name_of, split_address
from terngrad.cluster.silence import end_if_silent

_MAGIC = b"terngrad mesh 4\n"
_HELLO = struct.Struct("<16sI32s")  # magic, rank, proof
_PROOF_BYTES = 32
_CALL_SECS = 2.0
_RETRY_SECS = 0.1
_HELLO_SECS = 5.0  # for a whole hello
_MORE_PENDING = 64  # callers at a time without one, besides one for each process


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
        self._taken: dict[int, socket.socket] = {}
        self._news = threading.Condition()
        self._has_warned = False
        self._acceptor = Acceptor(
            listen(*split_address(hosts[rank])),
            _HELLO.size,
            self._take,
            self._tell,
            most=len(hosts) + _MORE_PENDING,
            timeout_secs=_HELLO_SECS,
            may_begin=_may_begin,
            on_rejected=self._reject,
        )
        self._acceptor.start()

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

    def name(self, rank: int) -> str:
        """Returns a name for the socket to a process, which both know and no other run has."""
        return self._proof(max(rank, self._rank), min(rank, self._rank)).hex()

    def close(self) -> None:
        """Closes the port."""
        self._acceptor.close()

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

    def _take(self, caller: socket.socket, hello: bytes) -> bool:
        _, rank, proof = _HELLO.unpack(hello)
        is_expected = self._rank < rank < len(self._hosts) and rank not in self._taken
        if not is_expected or not hmac.compare_digest(proof, self._proof(rank, self._rank)):
            self._warn()
            return False
        caller.setblocking(True)
        try:
            caller.sendall(self._proof(self._rank, rank))
        except OSError:
            return False
        with self._news:
            self._taken[rank] = caller
            self._news.notify_all()
        return True

    def _reject(self, is_silent: bool) -> None:
        if not is_silent:  # another worker that looks says nothing
            self._warn()

    def _warn(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._tell("another program connects; it is ignored.")

    def _tell(self, text: str) -> None:
        print(f"{self._hosts[self._rank]}: {text}", file=sys.stderr, flush=True)


def _may_begin(received: bytes) -> bool:
    return _MAGIC.startswith(received[: len(_MAGIC)])
