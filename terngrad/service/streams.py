"""The shared parts of both ends of a stream: options, the introduction, and outboxes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

import grpc

from terngrad.service.data_connection import DataConnection
from terngrad.service.messages import HELLO_KEY, MOVE, PIECE_BYTES, VERSION, Hello

LONGEST_REPORT = 1 << 20  # bytes
_LONGEST_HELLO = 1 << 16
LONGEST_PUSH = PIECE_BYTES + (1 << 14)
# A result has more planes than a push: up to 18 instead of 2.
LONGEST_RESULT = 9 * PIECE_BYTES + (1 << 14)
WELCOME = (("terngrad-welcome", "1"),)  # metadata at the start of the ps' half of a stream
_OFFER_KEY = "terngrad-data-bin"  # likewise: where the ps takes a data connection
_PORT_BYTES = 2
# How an asynchronous ps ends a stream whose gradient it cannot apply now, see `UnkeptError`.
# gRPC itself never ends a stream so.
UNKEPT = grpc.StatusCode.DATA_LOSS
_HANDSHAKE_MS = 5000  # in which a caller must finish its handshake, or is disconnected
_BEATS = 4  # keep-alives in the time after which a process counts as lost

Options = Sequence[tuple[str, int]]


def server_options(timeout_secs: float, connections: int) -> Options:
    """Returns the gRPC options of a ps with at most so many connections.

    It does not read messages that are too long.
    """
    return [
        *_common_options(timeout_secs),
        ("grpc.max_receive_message_length", max(LONGEST_PUSH, LONGEST_REPORT)),
        ("grpc.so_reuseport", 0),  # otherwise two ps could share a port and its workers
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
        ("grpc.max_allowed_incoming_connections", connections),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 100),
    ]


def channel_options(timeout_secs: float) -> Options:
    """Returns the gRPC options of a worker."""
    return [
        *_common_options(timeout_secs),
        ("grpc.max_receive_message_length", LONGEST_RESULT),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.min_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 2000),
        ("grpc.enable_retries", 0),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
    ]


def _common_options(timeout_secs: float) -> Options:
    # Keep-alives notice a silent process before the time-out, so that the error names a ps that
    # hangs, not the workers that wait for it.
    every = max(100, int(1000 * timeout_secs / _BEATS))
    return [
        ("grpc.max_send_message_length", LONGEST_RESULT),
        ("grpc.max_metadata_size", _LONGEST_HELLO),
        ("grpc.absolute_max_metadata_size", _LONGEST_HELLO),
        ("grpc.keepalive_time_ms", every),
        ("grpc.keepalive_timeout_ms", every),
        ("grpc.http2.ping_timeout_ms", every),
    ]


def hello(
    worker: int, ps: int, ps_hosts: Sequence[str], worker_hosts: Sequence[str], rules: str = ""
) -> Hello:
    """Returns the message with which a worker introduces itself to a ps."""
    return Hello(
        version=VERSION,
        worker=worker,
        ps=ps,
        ps_hosts=ps_hosts,
        worker_hosts=worker_hosts,
        rules=rules,
    )


def metadata(introduction: Hello) -> list[tuple[str, bytes]]:
    """Returns the metadata of a worker's stream."""
    return [(HELLO_KEY, introduction.SerializeToString())]


def offer_metadata(port: int, token: bytes) -> tuple[tuple[str, bytes]]:
    """Returns the metadata with which a ps offers a data connection."""
    return ((_OFFER_KEY, port.to_bytes(_PORT_BYTES, "big") + token),)


def read_offer(said: Iterable[tuple[str, str | bytes]]) -> tuple[int, bytes] | None:
    """Returns the port and the token that a ps has offered in its metadata; None without."""
    if not (found := dict(said).get(_OFFER_KEY)):
        return None
    return int.from_bytes(found[:_PORT_BYTES], "big"), found[_PORT_BYTES:]


class Outbox:
    """A queue of messages that a stream sends, or a data connection; any thread may put.

    Attributes:
      waiting_bytes: bytes of the waiting messages.
    """

    def __init__(self, cancel: Callable[[], object] = lambda: None) -> None:
        """Starts empty; `cancel` ends the stream at once."""
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._cancel = cancel
        self._connection: DataConnection | None = None
        self.waiting_bytes = 0

    def put(self, message: bytes) -> None:
        """Adds a message; never waits."""
        self._count(len(message))
        self._queue.put(message)

    def close(self) -> None:
        """Ends the stream after the waiting messages."""
        self._queue.put(None)

    def cut(self) -> None:
        """Ends the stream at once and drops the waiting messages."""
        self.close()
        self._cancel()

    def __len__(self) -> int:
        """Number of waiting messages."""
        return self._queue.qsize()

    def move(self, connection: DataConnection) -> None:
        """Lets a connection take the messages that wait, and those that follow."""
        self._connection = connection

    def __iter__(self) -> Iterator[bytes]:
        """Yields what goes over the stream until the outbox is closed, and sends the rest.

        The last that goes over the stream before the connection is used is MOVE.
        """
        moved = None
        for message in iter(self._queue.get, None):
            self._count(-len(message))
            if not moved and (moved := self._connection):
                yield MOVE
            if not moved:
                yield message
                continue
            try:
                moved.send(message)
            except OSError:  # who reads notices it, too
                moved.cut()
                return
        if moved:
            moved.end()

    def _count(self, octets: int) -> None:
        with self._lock:
            self.waiting_bytes += octets


def identity(message: bytes) -> bytes:
    """Returns a message as it is: gRPC needs a serializer, and messages are bytes already."""
    return message
