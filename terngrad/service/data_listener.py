"""Where a ps takes the data connections that it has offered to its workers."""

from __future__ import annotations

import contextlib
import math
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Iterator

from terngrad.cluster.acceptor import Acceptor, Connection
from terngrad.cluster.addresses import listen_at_any_port
from terngrad.cluster.encrypted import ChangedError, EncryptedSocket
from terngrad.service.data_connection import ACCEPTED, TOKEN_BYTES, DataConnection
from terngrad.service.members import Members
from terngrad.service.messages import MOVE, FrameError
from terngrad.service.security import Tls
from terngrad.service.streams import LONGEST_PUSH, Outbox, offer_metadata

_MORE_PENDING = 32  # callers at a time who have shown no token, besides as many as workers
_TOKEN_SECS = 5.0  # in which they must


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
        on_change: Callable[[ChangedError], object] = lambda error: None,
    ) -> None:
        """Offers nothing yet.

        Args:
          metadata: see the class.
          withdraw: makes its token invalid.
          timeout_secs: see `DataConnection`.
          on_change: likewise.
        """
        self.metadata, self._withdraw, self._timeout_secs = metadata, withdraw, timeout_secs
        self._on_change = on_change
        self.connection: DataConnection | None = None
        self._is_decided = False
        self._lock = threading.Lock()

    def take(self, connected: Connection) -> bool:
        """Uses a connection whose caller knows the token; False if it comes too late.

        It replaces one from which the worker has heard nothing in time, and so did not move to it.
        """
        with self._lock:
            if self._is_decided:
                return False
            before = self.connection
            self.connection = DataConnection(
                connected, LONGEST_PUSH, self._timeout_secs, self._on_change
            )
        if before:
            before.cut()
        return True

    def close(self) -> None:
        """Ends the connection, and accepts none any more; any thread may call."""
        self._decide()
        if self.connection:
            self.connection.cut()

    def received(self, stream: Iterable[bytes], outbox: Outbox) -> Iterator[bytes | memoryview]:
        """Yields the messages of a stream and, after a MOVE, those of the connection.

        Args:
          stream: the messages from a worker.
          outbox: those to it, which move, too.

        Raises:
          FrameError: a message of the connection is too long, or the worker has not opened the
            connection.
        """
        for message in stream:
            if message != MOVE:
                yield message
                continue
            self._decide()
            if not self.connection:
                raise FrameError("a worker moves to a data connection that it has not opened")
            outbox.move(self.connection)
            yield from self.connection
            return

    def _decide(self) -> None:
        self._withdraw()
        with self._lock:
            self._is_decided = True


class DataListener:
    """Listens at a port that the system chooses, for callers who know a token.

    Attributes:
      most_connections: that a ps may have here.
      port: where it listens; None: it offers nothing.
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
        self._most_pending = workers + _MORE_PENDING
        # An old one of a worker may still be there, and one may be there that is about to be ended.
        self.most_connections = 2 * workers + self._most_pending + 1
        self._offers: dict[bytes, Offer] = {}
        self._acceptor: Acceptor | None = None
        self.port: int | None = None

    def start(self, host: str) -> None:
        """Listens at a host's address; offers nothing if this is not possible."""
        try:
            listening = listen_at_any_port(host, self._most_pending)
            port = listening.getsockname()[1]
            self._acceptor = Acceptor(
                listening,
                TOKEN_BYTES,
                self._take,
                self._tell,
                most=self._most_pending,
                timeout_secs=_TOKEN_SECS,
                wrap=self._encrypted if self._members else lambda plain: plain,
            )
            self._acceptor.start()
        except (OSError, RuntimeError) as error:  # no address, descriptor or thread
            self._tell(f"Gradients travel over gRPC, which takes longer: {error}")
            return
        self.port = port

    def close(self) -> None:
        """Listens no longer; open connections stay."""
        self.port = None
        if self._acceptor:
            self._acceptor.close()

    def offer(self, on_change: Callable[[ChangedError], object] = lambda error: None) -> Offer:
        """Returns an offer for one stream; for `on_change` see `DataConnection`."""
        if not (port := self.port):
            return Offer()
        token = secrets.token_bytes(TOKEN_BYTES)
        withdraw = lambda: self._offers.pop(token, None)
        offer = Offer(offer_metadata(port, token), withdraw, self._timeout_secs, on_change)
        self._offers[token] = offer
        return offer

    def _encrypted(self, plain: socket.socket) -> EncryptedSocket:
        return EncryptedSocket(plain, self._members.server, server_side=True)

    def _take(self, connected: Connection, token: bytes) -> bool:
        """Gives a connection to the offer whose token its caller shows."""
        if not (offer := self._offers.get(token)) or not offer.take(connected):
            return False
        with contextlib.suppress(OSError):  # who uses the connection notices it, too
            connected.sendall(ACCEPTED)
        return True
