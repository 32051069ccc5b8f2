"""Connects every pair of processes of a training by a socket.

A process listens at its own host and connects to all of lower rank. Both prove that they have the
training's token. Programs without it are refused, and silent ones delay nobody.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable

from terngrad.cluster.addresses import name_of, split_address
from terngrad.cluster.errors import MembershipError
from terngrad.connect.acceptor import AnySocket
from terngrad.connect.calling import connect
from terngrad.connect.channel import end_if_silent
from terngrad.connect.config import ConnectConfig
from terngrad.connect.introduction import AdmissionError, Hello
from terngrad.connect.listener import Listener
from terngrad.connect.log_limiter import LogLimiter
from terngrad.connect.tls import has_ended

_PURPOSE = "Mesh"
_MAX_WAITING = 64  # callers at a time that are not admitted yet, besides one for each process
_RETRY_SECS = 0.1


class PeerSockets:
    """The sockets of this process."""

    def __init__(
        self, config: ConnectConfig, token: bytes, listening: socket.socket | None = None
    ) -> None:
        """Listens for the processes of higher rank.

        Args:
          config: of this process. The sockets are plain, whatever it says.
          token: secret that all processes share, also those that have no secret in `config`.
          listening: socket that already listens at this process' address; None = there is none.

        Raises:
          PortError: this process cannot listen at its address.
        """
        self._hosts, self._rank = hosts, rank = list(config.worker_hosts), config.rank
        token = hmac.digest(token, "\n".join(hosts).encode(), hashlib.sha256)
        self._config = dataclasses.replace(config, tls=None, secret=token)
        self._taken: dict[int, AnySocket] = {}
        self._news = threading.Condition()
        self._is_over = False
        self._listener = Listener(
            listening or config.listen(*split_address(hosts[rank])),
            self._config,
            {_PURPOSE: self._take},
            self._check,
            LogLimiter(self._log),
            max_connections=_MAX_WAITING,
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
            while absent := [rank for rank in higher if not self._is_connected(rank)]:
                if (left_secs := deadline - time.monotonic()) <= 0:
                    break
                self._news.wait(min(left_secs, _RETRY_SECS))
            if absent:
                absent = [name_of(rank, self._hosts) for rank in absent]
                raise MembershipError(f"{', '.join(absent)} did not connect to this worker")
            mine |= self._taken
        self._prepare(mine.values())
        return mine

    def reach(self, check: Callable[[], None]) -> dict[int, socket.socket]:
        """Returns a socket to each other process that this one reaches in time, by rank.

        Args:
          check: called repeatedly; an error that it raises ends the wait.
        """
        deadline = time.monotonic() + self._config.timeout_secs
        ends = threading.Event()
        for rank in range(self._rank):
            call = lambda rank=rank: self._reach(rank, deadline, ends)
            threading.Thread(target=call, daemon=True).start()
        others = set(range(len(self._hosts))) - {self._rank}
        try:
            while True:
                check()
                with self._news:
                    absent = [rank for rank in others if not self._is_connected(rank)]
                    if not absent or time.monotonic() > deadline:
                        found, self._taken = self._taken, {}
                        break
                    self._news.wait(0.05)
        finally:
            with self._news:
                ends.set()
                left = [*self._taken.values()]
            for each in left:
                each.close()
        self._prepare(found.values())
        return found

    def _reach(self, rank: int, deadline: float, ends: threading.Event) -> None:
        try:
            caller = self._call(rank, deadline, ends)
        except MembershipError:
            return
        with self._news:
            if not ends.is_set():
                self._taken[rank] = caller
                self._news.notify_all()
                return
        caller.close()

    def _is_connected(self, rank: int) -> bool:
        """Whether another process has a socket; closes one whose caller has ended it.

        That one did not get its welcome, for example, and calls again.
        """
        if rank > self._rank and rank in self._taken and has_ended(self._taken[rank]):
            self._taken.pop(rank).close()
        return rank in self._taken

    def _prepare(self, sockets: Iterable[socket.socket]) -> None:
        for each in sockets:
            each.settimeout(None)
            # A last resort: the processes watch each other. A process that still compiles its first
            # step reads nothing, however long that takes.
            end_if_silent(each, 2 * self._config.timeout_secs, while_sending=False)

    def name(self, rank: int) -> str:
        """Returns a name for the socket to a process, which both know and no other run has."""
        text = f"{max(rank, self._rank)} to {min(rank, self._rank)}"
        return hmac.digest(self._config.secret, text.encode(), hashlib.sha256).hex()

    def close(self) -> None:
        """Closes the port."""
        with self._news:
            self._is_over = True
        self._listener.close()

    def _call(
        self, rank: int, deadline: float, ends: threading.Event | None = None
    ) -> socket.socket:
        """Connects to a process of lower rank; tries until the deadline, or until `ends` is set."""
        hello, address = self._config.hello(_PURPOSE, rank), split_address(self._hosts[rank])
        while True:
            try:
                return connect(self._config, address, hello, deadline)[0]
            except (OSError, AdmissionError) as error:
                if time.monotonic() > deadline or (ends and ends.is_set()):
                    host = name_of(rank, self._hosts)
                    raise MembershipError(f"{host} cannot be reached: {error}") from None
            time.sleep(_RETRY_SECS)

    def _check(self, hello: Hello) -> None:
        theirs = list(hello.worker_hosts), list(hello.ps_hosts), hello.callee
        if theirs != (self._hosts, [], self._rank):
            raise AdmissionError("it belongs to another training")
        if not self._rank < hello.worker < len(self._hosts):
            raise AdmissionError(f"worker {hello.worker} does not connect to this one")

    def _take(self, hello: Hello, caller: AnySocket, address: str) -> Callable[[], object]:
        """Takes an admitted connection; see `listener.Open`."""
        del address
        with self._news:
            if self._is_connected(hello.worker):
                raise AdmissionError(f"{name_of(hello.worker, self._hosts)} is connected already")

        def hand_over() -> None:
            with self._news:
                if self._is_over:
                    caller.close()
                self._taken[hello.worker] = caller
                self._news.notify_all()

        return hand_over

    def _log(self, text: str) -> None:
        print(f"{self._hosts[self._rank]}: {text}", file=sys.stderr, flush=True)
