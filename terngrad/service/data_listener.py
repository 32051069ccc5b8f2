"""Where a ps takes the data connections that it has offered to its workers."""

from __future__ import annotations

import contextlib
import math
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from terngrad.cluster.addresses import listen_at_any_port
from terngrad.cluster.encrypted import EncryptedSocket
from terngrad.service.data_connection import ACCEPTED, TOKEN_BYTES, DataConnection
from terngrad.service.members import Members
from terngrad.service.messages import FrameError, split_frame
from terngrad.service.security import Tls
from terngrad.service.streams import LONGEST_PUSH, Outbox, offer_metadata

_MORE_STRANGERS = 32  # callers at a time who have shown no token, besides as many as workers
_TOKEN_SECS = 5.0  # in which they must
_SHORTEST_SECS = 0.01
_PAUSE_SECS = 0.1  # after an error, such as a lack of descriptors


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
        """Yields the messages of a stream, or of the connection if the first one says so.

        Raises:
          FrameError: the first message is no frame, or a message of the connection is too long, or
            the worker has not opened the connection.
        """
        messages = iter(stream)
        if (first := next(messages, None)) is None:
            return
        if not split_frame(first)[0].moves:
            yield first
            yield from messages
        elif self.connection:
            self._moved = True
            yield from self.connection
        else:
            raise FrameError("a worker moves to a data connection that it has not opened")

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
    """Listens at a port that the system chooses, for callers who know a token.

    Attributes:
      most_connections: that a ps may have here.
    """

    def __init__(
        self, tls: Tls | None, timeout_secs: float, workers: int, tell: Callable[[str], object]
    ) -> None:
        """Does not listen yet.

        Args:
          tls: certificates; None = plain text.
          timeout_secs: see `DataConnection`.
          workers: number of workers, which may all come at once.
          tell: writes a line to the log.

        Raises:
          OSError, ValueError: see `Members`.
        """
        self._members = Members(tls) if tls else None
        self._timeout_secs, self._tell = timeout_secs, tell
        self._most_strangers = workers + _MORE_STRANGERS
        self.most_connections = 2 * workers + self._most_strangers  # an old one may still be there
        self._offers: dict[bytes, Offer] = {}
        self._strangers: dict[socket.socket, None] = {}  # the oldest first
        self._lock = threading.Lock()
        self._listening: socket.socket | None = None
        self._port: int | None = None  # None: this offers nothing

    def start(self, host: str) -> None:
        """Listens at a host's address; offers nothing if this is not possible."""
        try:
            self._listening = listen_at_any_port(host, self._most_strangers)
        except OSError as error:
            self._tell(f"Gradients travel over gRPC, which takes longer: {error}")
            return
        self._port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listening,), daemon=True).start()

    def close(self) -> None:
        """Listens no longer; open connections stay."""
        self._port = None
        if self._listening:
            with contextlib.suppress(OSError):
                self._listening.shutdown(socket.SHUT_RDWR)  # ends `accept`
            self._listening.close()

    def offer(self) -> Offer:
        """Returns an offer for one stream."""
        if not (port := self._port):
            return Offer()
        token = secrets.token_bytes(TOKEN_BYTES)
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
            with self._lock:
                if len(self._strangers) >= self._most_strangers:
                    oldest = next(iter(self._strangers))
                    del self._strangers[oldest]
                    with contextlib.suppress(OSError):  # it may have ended by itself
                        socket.socket.shutdown(oldest, socket.SHUT_RDWR)
                self._strangers[connected] = None
            threading.Thread(target=self._meet, args=(connected,), daemon=True).start()

    def _meet(self, connected: socket.socket) -> None:
        """Gives a connection to the offer whose token its caller shows, or ends it."""
        end: socket.socket | EncryptedSocket = connected
        try:
            if self._members:
                end = EncryptedSocket(connected, self._members.server, server_side=True)
            offer = self._offers.get(_read_token(end))
            with self._lock:
                self._strangers.pop(connected, None)
            if offer and offer.take(end):
                end.sendall(ACCEPTED)
            else:
                end.close()
        except OSError:
            end.close()
        finally:
            with self._lock:
                self._strangers.pop(connected, None)


def _read_token(end: socket.socket | EncryptedSocket) -> bytes:
    """Returns what a caller sends first; waits for it as long as it may take.

    Raises:
      OSError: it does not come in time.
    """
    token, deadline = b"", time.monotonic() + _TOKEN_SECS
    while len(token) < TOKEN_BYTES:
        end.settimeout(max(_SHORTEST_SECS, deadline - time.monotonic()))
        if not (more := end.recv(TOKEN_BYTES - len(token))):
            break
        token += more
    return token
