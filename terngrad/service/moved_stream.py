"""A worker's stream whose messages may move to a data connection, at once or later."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import grpc

from terngrad.service.data_connection import DataConnection
from terngrad.service.messages import MOVE
from terngrad.service.streams import Outbox

_END_SECS = 5.0  # in which a ps ends the stream after the connection


class MovableCall:
    """A stream, and the messages that travel over a data connection instead.

    Each side says MOVE over the stream, as the last there, before it uses the connection. So no
    message overtakes another.
    """

    def __init__(self, call: grpc.Call, outbox: Outbox) -> None:
        """Takes a new stream, and the messages that it sends."""
        self._call, self._outbox = call, outbox
        self._connection: DataConnection | None = None

    def move(self, connection: DataConnection) -> None:
        """Moves to a connection that the ps has accepted; when the stream ends, it ends, too."""
        self._connection = connection
        if not self._call.add_callback(connection.cut):
            connection.cut()
        self._outbox.move(connection)

    def __iter__(self) -> Iterator[bytes | memoryview]:
        """Yields the messages from the ps until both have ended."""
        for message in self._call:
            if message == MOVE:
                break
            yield message
        else:
            return
        yield from self._connection
        self._connection.cut()
        timer = threading.Timer(_END_SECS, self._call.cancel)  # if only the connection broke
        timer.daemon = True
        timer.start()
        self._call.code()
        timer.cancel()

    def is_active(self) -> bool:
        """Returns whether the stream is open."""
        return self._call.is_active()

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Calls back when the stream ends; returns False if it has ended."""
        return self._call.add_callback(callback)

    def initial_metadata(self) -> tuple:
        """Returns what the ps said when it opened the stream."""
        return self._call.initial_metadata()

    def code(self) -> grpc.StatusCode:
        """Waits for the end of the stream; returns why it ended."""
        return self._call.code()

    def details(self) -> str:
        """Waits for the end of the stream; returns what its ps said."""
        return self._call.details()
