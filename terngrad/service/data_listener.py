"""Where a ps takes the data connections that it has offered to its workers."""

from __future__ import annotations

import contextlib
import math
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from terngrad.cluster.encrypted import EncryptedSocket
from terngrad.service.data_connection import ACCEPTED, TOKEN_BYTES, DataConnection
from terngrad.service.members import Members
from terngrad.service.messages import MOVE, FrameError
from terngrad.service.security import Tls
from terngrad.service.streams import LONGEST_PUSH, Outbox, offer_metadata

MOST_STRANGERS = 32  # connections at a time whose callers have shown no token yet
_TOKEN_SECS = 5.0  # in which they must send some of it
_PAUSE_SECS = 0.1  # after an error, such as a lack of descriptors


def most_connections(workers: int) -> int:
    """Returns how many connections a ps may have here."""
    return 2 * workers + MOST_STRANGERS  # a worker may come back before its last one has ended


class Offer:
    """A data connection that one stream may use.

    Attributes:
      metadata: tells the worker of it, at the start of the stream; empty if there is none.
      connection: None until the worker has opened it.
    """

    def __init__(
        self,
        metadata: tuple = (),
        withdraw: Callable[[], None] = lambda: None,
        timeout_secs: float = math.inf,
    ) -> None:
        """Offers nothing yet.

        Args:
          metadata: see the class.
          withdraw: makes its token invalid.
          timeout_secs: see `DataConnection`.
        """
        self.metadata, self._withdraw, self._timeout_secs = metadata, withdraw, timeout_secs
        self.connection: DataConnection | None = None
        self._moved = self._over = False
        self._lock = threading.Lock()

    def take(self, connected: socket.socket | EncryptedSocket) -> bool:
        """Uses a connection whose caller knows the token; False if it comes too late."""
        self._withdraw()
        with self._lock:
            if self._over or self.connection:
                return False
            self.connection = DataConnection(connected, LONGEST_PUSH, self._timeout_secs)
            return True

    def close(self) -> None:
        """Ends the connection, and accepts none any more; any thread may call."""
        self._withdraw()
        with self._lock:
            self._over = True
        if self.connection:
            self.connection.cut()

    def received(self, stream: Iterable[bytes]) -> Iterator[bytes | memoryview]:
        """Yields the messages of a stream, and from the worker's notice on those of the connection.

        Raises:
          FrameError: the worker uses a connection that it has not opened, or a message is too long.
        """
        for message in stream:
            if message != MOVE:
                yield message
                continue
            if not self.connection:
                raise FrameError("a worker moves to a data connection that it has not opened")
            self._moved = True
            yield from self.connection
            return

    def sent(self, outbox: Outbox) -> Iterator[bytes]:
        """Sends what is in an outbox over the connection; yields what goes over the stream."""
        try:
            for message in outbox:
                if self._moved:
                    self.connection.send(message)
                else:
                    yield message
        except OSError:  # the connection has ended, and with it the stream
            pass


class DataListener:
    """Listens at a port that the system chooses, for callers who know a token."""

    def __init__(self, tls: Tls | None, timeout_secs: float) -> None:
        """Does not listen yet.

        Args:
          tls: certificates; None = plain text.
          timeout_secs: see `DataConnection`.

        Raises:
          OSError, ValueError: see `Members`.
        """
        self._members = Members(tls) if tls else None
        self._timeout_secs = timeout_secs
        self._offers: dict[bytes, Offer] = {}
        self._strangers = threading.Semaphore(MOST_STRANGERS)
        self._listening: socket.socket | None = None

    def start(self, host: str) -> None:
        """Listens at a host's address; offers nothing if this is not possible."""
        with contextlib.suppress(OSError):
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._listening = socket.create_server(
                (host, 0), family=family, backlog=MOST_STRANGERS, dualstack_ipv6=host == "::"
            )
            threading.Thread(target=self._accept, args=(self._listening,), daemon=True).start()

    def close(self) -> None:
        """Listens no longer; open connections stay."""
        if self._listening:
            with contextlib.suppress(OSError):
                self._listening.shutdown(socket.SHUT_RDWR)  # ends `accept`
            self._listening.close()

    def offer(self) -> Offer:
        """Returns an offer for one stream."""
        if not self._listening:
            return Offer()
        token = secrets.token_bytes(TOKEN_BYTES)
        port = self._listening.getsockname()[1]
        withdraw = lambda: self._offers.pop(token, None)
        offer = Offer(offer_metadata(port, token), withdraw, self._timeout_secs)
        self._offers[token] = offer
        return offer

    def _accept(self, listening: socket.socket) -> None:
        while listening.fileno() >= 0:
            try:
                connected, _ = listening.accept()
            except OSError:
                time.sleep(_PAUSE_SECS)
                continue
            if self._strangers.acquire(blocking=False):
                threading.Thread(target=self._admit, args=(connected,), daemon=True).start()
            else:  # a flood: workers do without
                connected.close()

    def _admit(self, connected: socket.socket | EncryptedSocket) -> None:
        """Gives a connection to the offer whose token its caller shows, or ends it."""
        try:
            connected.settimeout(_TOKEN_SECS)
            if self._members:
                connected = EncryptedSocket(connected, self._members.server, server_side=True)
            token = b""
            while len(token) < TOKEN_BYTES and (more := connected.recv(TOKEN_BYTES - len(token))):
                token += more
            if (offer := self._offers.get(token)) and offer.take(connected):
                connected.sendall(ACCEPTED)
            else:
                connected.close()
        except OSError:
            connected.close()
        finally:
            self._strangers.release()
