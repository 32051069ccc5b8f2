"""A worker's stream whose messages travel over a data connection."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import grpc

from terngrad.service.data_connection import DataConnection
from terngrad.service.messages import MOVE
from terngrad.service.streams import Outbox

_END_SECS = 5.0  # in which a ps ends the stream after the connection


class MovedCall:
    """A stream and the messages that travel over a data connection instead."""

    def __init__(self, call: grpc.Call, connection: DataConnection) -> None:
        """When the stream ends, the connection ends, too."""
        self._call, self._connection = call, connection
        threading.Thread(target=self._drain, daemon=True).start()
        if not call.add_callback(connection.cut):
            connection.cut()

    def __iter__(self) -> Iterator[memoryview]:
        """Yields the messages from the ps until both have ended."""
        yield from self._connection
        self._connection.cut()
        timer = threading.Timer(_END_SECS, self._call.cancel)  # if only the connection broke
        timer.daemon = True
        timer.start()
        self._call.code()
        timer.cancel()

    def _drain(self) -> None:
        """Reads what the ps sent over the stream before it moved: unread, it would hide the end."""
        with contextlib.suppress(grpc.RpcError):
            for _ in self._call:
                pass

    def code(self) -> grpc.StatusCode:
        """Waits for the end of the stream; returns why it ended."""
        return self._call.code()

    def details(self) -> str:
        """Waits for the end of the stream; returns what its ps said."""
        return self._call.details()


def move(call: grpc.Call, outbox: Outbox, connection: DataConnection) -> tuple[MovedCall, Outbox]:
    """Moves a new stream, over which nothing was sent, to a connection that its ps has accepted.

    Returns:
      The messages from the ps, and the outbox for messages to it.
    """
    outbox.put(MOVE)
    moved = Outbox()

    def send() -> None:
        try:
            for message in moved:
                connection.send(message)
            connection.end()
        except OSError:  # who reads notices it, too
            connection.cut()
        finally:
            outbox.close()

    threading.Thread(target=send, daemon=True).start()
    return MovedCall(call, connection), moved
