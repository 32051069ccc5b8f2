"""Accepts connections from anybody, and hands over those whose callers introduce themselves.

One thread serves all and waits for none, so that callers cost no threads, and silent ones keep
nobody out. Neither a lack of descriptors nor any other error ends it.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable

from terngrad.cluster.encrypted import EncryptedSocket

Connection = socket.socket | EncryptedSocket

_LOOK_SECS = 1.0  # where the end of listening wakes no thread
_PAUSE_SECS = 0.1  # after an error, such as a lack of descriptors
_UNFINISHED = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Acceptor:
    """Reads the hello of each caller: what it must send first, of a fixed size."""

    def __init__(
        self,
        listening: socket.socket,
        hello_bytes: int,
        take: Callable[[Connection, bytes], bool],
        tell: Callable[[str], object],
        *,
        most: int,
        timeout_secs: float,
        wrap: Callable[[socket.socket], Connection] = lambda plain: plain,
        may_begin: Callable[[bytes], bool] = lambda received: True,
        on_rejected: Callable[[bool], object] = lambda is_silent: None,
    ) -> None:
        """Accepts nothing before `start`.

        Args:
          listening: socket that listens; owned from now on.
          hello_bytes: size of a hello.
          take: uses a connection, which does not block, and its hello; returns False if it is to be
            closed. All calls come from one thread, for which callers wait.
          tell: writes a line about an error of this process.
          most: connections at a time without a whole hello; a further one ends the oldest.
          timeout_secs: in which a hello must be whole.
          wrap: makes of a connection what is read; must not wait for a handshake.
          may_begin: whether a hello may begin with these bytes.
          on_rejected: told of each connection without a valid hello, and whether it was silent
            without being late.

        Raises:
          OSError: there is no descriptor left.
        """
        listening.setblocking(False)
        self._listening, self._hello_bytes, self._most = listening, hello_bytes, most
        self._take, self._tell, self._timeout_secs = take, tell, timeout_secs
        self._wrap, self._may_begin, self._on_rejected = wrap, may_begin, on_rejected
        self._pending: dict[Connection, _Pending] = {}  # the oldest first
        self._is_closed = False
        self._last_told = ""
        self._selector = selectors.DefaultSelector()
        self._selector.register(listening, selectors.EVENT_READ)

    def start(self) -> None:
        """Starts the thread.

        Raises:
          RuntimeError: this process can start none.
        """
        try:
            threading.Thread(target=self._run, daemon=True).start()
        except RuntimeError:
            self._close_all()
            raise

    def close(self) -> None:
        """Listens no longer; connections that were taken stay. Any thread may call."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes the thread

    def _run(self) -> None:
        while not self._is_closed:
            try:
                self._turn()
            except Exception as error:  # whatever it is, the next caller may be a worker
                self._complain(error)
                time.sleep(_PAUSE_SECS)
        self._close_all()

    def _close_all(self) -> None:
        for each in (*self._pending, self._listening, self._selector):
            each.close()

    def _turn(self) -> None:
        """Waits until something happens, and handles it."""
        oldest = next(iter(self._pending.values()), None)
        left = max(0.0, oldest.until - time.monotonic()) if oldest else _LOOK_SECS
        for key, _ in self._selector.select(min(left, _LOOK_SECS)):
            if key.fileobj is self._listening:
                self._accept()
            elif pending := self._pending.get(key.fileobj):  # not ended in this turn
                self._read(pending)
        now = time.monotonic()
        for pending in [each for each in self._pending.values() if each.until <= now]:
            self._reject(pending)

    def _accept(self) -> None:
        try:
            plain, _ = self._listening.accept()
        except (BlockingIOError, ConnectionAbortedError):  # the caller has gone
            return
        except OSError:  # most likely there is no descriptor left
            if self._is_closed:
                return
            if not self._pending:
                raise
            self._reject(next(iter(self._pending.values())))
            return
        if len(self._pending) >= self._most:
            self._reject(next(iter(self._pending.values())))
        plain.setblocking(False)
        try:
            connection = self._wrap(plain)
        except OSError:  # the caller has gone
            plain.close()
            return
        try:
            self._selector.register(connection, selectors.EVENT_READ)
        except BaseException:
            connection.close()
            raise
        until = time.monotonic() + self._timeout_secs
        self._pending[connection] = _Pending(connection, until)

    def _read(self, pending: _Pending) -> None:
        """Reads what has arrived, and hands the connection over if its hello is whole."""
        while (left := self._hello_bytes - len(pending.received)) > 0:
            try:
                more = pending.connection.recv(left)
            except _UNFINISHED:
                return
            except OSError:  # it has gone, or is not what TLS expects
                more = b""
            pending.received += more
            if not more or not self._may_begin(pending.received):
                self._reject(pending)
                return
        self._forget(pending)
        is_taken = False
        try:
            is_taken = self._take(pending.connection, pending.received)
        finally:
            if not is_taken:
                self._close(pending)

    def _reject(self, pending: _Pending) -> None:
        self._forget(pending)
        self._close(pending)

    def _forget(self, pending: _Pending) -> None:
        del self._pending[pending.connection]
        self._selector.unregister(pending.connection)

    def _close(self, pending: _Pending) -> None:
        pending.connection.close()
        self._on_rejected(not pending.received and time.monotonic() < pending.until)

    def _complain(self, error: Exception) -> None:
        """Says what is wrong, once until it is something else."""
        text = f"Connections cannot be accepted: {error}"
        if text != self._last_told:
            self._last_told = text
            with contextlib.suppress(Exception):  # such as a full disk
                self._tell(text)


class _Pending:
    """A connection whose hello is not whole."""

    def __init__(self, connection: Connection, until: float) -> None:
        self.connection = connection
        self.until = until
        self.received = b""
