"""Connects each process of a training with each other: one socket for each pair.

A process listens at its own host and connects to all of lower rank. Both show that they have the
training's token. Programs that connect without it, or stay silent, are refused and disturb nobody.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import socket
import sys
import threading
import time
from collections.abc import Callable

from terngrad.cluster.addresses import listen
from terngrad.cluster.channel import MembershipError, name_of, split_address
from terngrad.connect.acceptor import Connection
from terngrad.connect.calling import connect
from terngrad.connect.channel import end_if_silent
from terngrad.connect.config import ConnectConfig
from terngrad.connect.introduction import AdmissionError, Hello
from terngrad.connect.listener import Listener
from terngrad.connect.log_limiter import LogLimiter

_PURPOSE = "Mesh"
_MOST_WAITING = 64  # callers at a time that are not admitted, besides one for each process
_RETRY_SECS = 0.1


class PeerSockets:
    """The sockets of this process."""

    def __init__(self, config: ConnectConfig, token: bytes) -> None:
        """Listens for the processes of higher rank.

        Args:
          config: of this process. The sockets are plain, whatever it says.
          token: secret that all processes share, also those that have no secret in `config`.

        Raises:
          PortError: this process cannot listen at its address.
        """
        self._hosts, self._rank = hosts, rank = list(config.worker_hosts), config.rank
        token = hmac.digest(token, "\n".join(hosts).encode(), hashlib.sha256)
        self._config = dataclasses.replace(config, members=None, secret=token)
        self._taken: dict[int, Connection] = {}
        self._news = threading.Condition()
        self._listener = Listener(
            listen(*split_address(hosts[rank]), interface=config.interface),
            self._config,
            {_PURPOSE: self._take},
            self._check,
            LogLimiter(self._tell),
            most=_MOST_WAITING,
        )
        self._listener.start()

    def connect(self) -> dict[int, socket.socket]:
        """Returns a socket to each other process, by rank.

        Raises:
          MembershipError: names the processes that did not connect or cannot be reached in time.
        """
        timeout_secs = self._config.timeout_secs
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
        text = f"{max(rank, self._rank)} to {min(rank, self._rank)}"
        return hmac.digest(self._config.secret, text.encode(), hashlib.sha256).hex()

    def close(self) -> None:
        """Closes the port."""
        self._listener.close()

    def _call(self, rank: int, deadline: float) -> socket.socket:
        """Connects to a process of lower rank."""
        hello, address = self._config.hello(_PURPOSE, rank), split_address(self._hosts[rank])
        while True:
            try:
                return connect(self._config, address, hello, deadline)[0]
            except (OSError, AdmissionError) as error:
                if time.monotonic() > deadline:
                    host = name_of(rank, self._hosts)
                    raise MembershipError(f"{host} cannot be reached: {error}") from None
            time.sleep(_RETRY_SECS)

    def _check(self, hello: Hello) -> None:
        theirs = list(hello.worker_hosts), list(hello.ps_hosts), hello.callee
        if theirs != (self._hosts, [], self._rank):
            raise AdmissionError("it looks for another training")
        if not self._rank < hello.worker < len(self._hosts):
            raise AdmissionError(f"worker {hello.worker} does not call this one")

    def _take(self, hello: Hello, caller: Connection, address: str) -> Callable[[], object]:
        """See `Open`."""
        del address
        with self._news:
            if hello.worker in self._taken:
                raise AdmissionError(f"{name_of(hello.worker, self._hosts)} is connected already")

        def hand_over() -> None:
            with self._news:
                self._taken[hello.worker] = caller
                self._news.notify_all()

        return hand_over

    def _tell(self, text: str) -> None:
        print(f"{self._hosts[self._rank]}: {text}", file=sys.stderr, flush=True)
