"""Accepts connections and reads the first bytes that each caller sends.

One thread serves all callers without blocking, so a caller costs no thread, and a silent one delays
no other. The thread survives errors, such as a lack of file descriptors.
"""

from __future__ import annotations

import collections
import contextlib
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Generator
from functools import partial

from terngrad.connect.tls import EncryptedSocket, EncryptionError

AnySocket = socket.socket | EncryptedSocket  # to another process

# A coroutine that reads the first bytes of a caller. It yields how many it needs next, is sent
# these, and returns whether it accepts the connection. A rejected one is closed after the caller
# has read what was sent to it.
Greeting = Generator[int, bytes, bool]

_POLL_SECS = 0.5  # also for the end of listening, which does not wake the thread everywhere
_PAUSE_SECS = 0.1  # after an error, such as a lack of descriptors
_LEAVE_SECS = 2.0  # for a rejected caller to read the reason
_MAX_AT_ONCE = 1 << 16  # bytes
_UNFINISHED = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class PendingConnection:
    """A connection that is not accepted yet, and does not block.

    Attributes:
      connection: the socket, with TLS where it is used.
      address: of its host.
      fault: the error of TLS; "" = none.
    """

    def __init__(self, plain: socket.socket, address: str, until: float) -> None:
        self.connection: AnySocket = plain
        self.address, self.fault = address, ""
        self._until = until
        self._greeting: Greeting | None = None  # None until a first byte is there
        self._wanted, self._received = 0, b""
        self._is_leaving = False


class _GreetingError(Exception):
    """An error of this process, not of its caller."""


class Acceptor:
    """Reads what each caller sends first, with a `Greeting`."""

    def __init__(
        self,
        listening: socket.socket,
        greet: Callable[[PendingConnection], Greeting],
        log: Callable[[str], object],
        *,
        max_connections: int,
        max_per_address: int | None = None,
        timeout_secs: float,
        wrap: Callable[[socket.socket], AnySocket] = lambda plain: plain,
        on_rejected: Callable[[PendingConnection], object] = lambda caller: None,
        on_poll: Callable[[], object] = lambda: None,
    ) -> None:
        """Accepts nothing before `start`.

        Args:
          listening: socket that listens; owned from now on.
          greet: starts the greeting of a caller. All greetings run in one thread: none may block.
          log: writes a line about an error of this process.
          max_connections: connections at a time in a greeting; a further one ends the oldest.
          max_per_address: likewise, of one address; None = `max_connections`.
          timeout_secs: time in which a greeting must be complete.
          wrap: returns a connection with TLS or as it is, once its first byte has arrived; must not
            wait for a handshake.
          on_rejected: called with each connection that ended during its greeting, except those
            that closed without sending anything.
          on_poll: called about twice a second.

        Raises:
          OSError: there is no descriptor left.
        """
        listening.setblocking(False)
        self._listening, self._greet, self._log = listening, greet, log
        self._max_connections = max_connections
        self._max_per_address = max_per_address or max_connections
        self._timeout_secs, self._wrap, self._on_rejected = timeout_secs, wrap, on_rejected
        self._on_poll, self._polled_at = on_poll, 0.0
        self._callers: dict[AnySocket, PendingConnection] = {}  # the oldest first
        self._is_closed = False
        self._last_logged = ""
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
        """Stops listening; accepted connections stay. Any thread may call."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes the thread

    def _run(self) -> None:
        while not self._is_closed:
            try:
                self._poll()
            except _GreetingError as error:  # its caller is closed, so there is no need to pause
                self._complain(error.__cause__)
            except Exception as error:  # the next caller may be a worker
                self._complain(error)
                time.sleep(_PAUSE_SECS)
        self._close_all()

    def _close_all(self) -> None:
        for each in (*self._callers, self._listening, self._selector):
            each.close()

    def _poll(self) -> None:
        """Waits until something happens, and handles it."""
        ends = (caller._until for caller in self._callers.values())
        left = min(ends, default=float("inf")) - time.monotonic()
        for key, _ in self._selector.select(min(max(0.0, left), _POLL_SECS)):
            if key.fileobj is self._listening:
                self._accept()
            elif caller := self._callers.get(key.fileobj):  # else it has just ended
                self._read(caller)
        now = time.monotonic()
        for caller in [each for each in self._callers.values() if each._until <= now]:
            self._reject(caller)
        if now - self._polled_at >= _POLL_SECS:
            self._polled_at = now
            self._on_poll()

    def _accept(self) -> None:
        try:
            plain, address = self._listening.accept()
        except (BlockingIOError, ConnectionAbortedError):  # the caller has gone
            return
        except OSError:  # most likely there is no descriptor left
            if self._is_closed:
                return
            if not self._callers:
                raise
            self._reject(next(iter(self._callers.values())))
            return
        host = address[0].removeprefix("::ffff:")  # where IPv6 listens for both
        self._make_room(host)
        plain.setblocking(False)
        try:
            self._selector.register(plain, selectors.EVENT_READ)
        except BaseException:
            plain.close()
            raise
        self._callers[plain] = PendingConnection(plain, host, time.monotonic() + self._timeout_secs)

    def _make_room(self, host: str) -> None:
        """Ends the oldest of the host's callers, or of all, if there are too many."""
        counts = collections.Counter(caller.address for caller in self._callers.values())
        of_host = counts[host] >= self._max_per_address
        if of_host or len(self._callers) >= self._max_connections:
            callers = self._callers.values()
            self._reject(next(each for each in callers if not of_host or each.address == host))

    def _read(self, caller: PendingConnection) -> None:
        """Reads the bytes that have arrived, and continues the greeting."""
        if caller._is_leaving:
            self._drain(caller)
            return
        try:
            if not caller._greeting and not self._begin(caller):
                return
            while self._fill(caller):
                self._resume(caller)
        except _UNFINISHED:
            return
        except OSError as error:  # it has gone, or breaks TLS
            caller.fault = str(error) if isinstance(error, EncryptionError) else ""
            self._reject(caller)
        except _GreetingError:
            self._close(caller)
            raise

    def _begin(self, caller: PendingConnection) -> bool:
        """Begins a greeting; False if the caller closed the connection without sending anything."""
        if not caller.connection.recv(1, socket.MSG_PEEK):
            self._close(caller)
            return False
        plain = caller.connection
        self._selector.unregister(plain)
        caller.connection = self._wrap(plain)
        callers = [*self._callers.values()]
        self._callers = {each.connection: each for each in callers}  # as old as before
        self._selector.register(caller.connection, selectors.EVENT_READ)
        caller._greeting = self._greet(caller)
        self._resume(caller)
        return True

    def _resume(self, caller: PendingConnection) -> None:
        """Resumes a greeting with the bytes it asked for, until it needs more."""
        said, caller._received = caller._received or None, b""
        try:
            caller._wanted = caller._greeting.send(said)
        except StopIteration as done:
            caller._wanted = 0
            self._end(caller, is_taken=bool(done.value))
        except Exception as error:
            raise _GreetingError from error

    def _fill(self, caller: PendingConnection) -> bool:
        """Reads bytes for the greeting; False if the caller has gone or the greeting is over."""
        while (left := caller._wanted - len(caller._received)) > 0:
            more = caller.connection.recv(min(left, _MAX_AT_ONCE))
            if not more:
                self._reject(caller)
                return False
            caller._received += more
        return bool(caller._wanted)

    def _end(self, caller: PendingConnection, *, is_taken: bool) -> None:
        """Hands over an accepted connection, or lets a rejected caller read why."""
        if is_taken:
            self._forget(caller)
            return
        caller._is_leaving, caller._until = True, time.monotonic() + _LEAVE_SECS
        with contextlib.suppress(OSError):
            caller.connection.shutdown(socket.SHUT_WR)
        self._drain(caller)

    def _drain(self, caller: PendingConnection) -> None:
        """Drops incoming bytes: closing a socket with unread bytes discards the last message."""
        try:
            # Also below TLS, which may have failed.
            own = isinstance(caller.connection, EncryptedSocket)
            skip = caller.connection.skip if own else partial(socket.socket.recv, caller.connection)
            if skip(_MAX_AT_ONCE):
                return  # there may be more
        except _UNFINISHED:
            return
        except OSError:
            pass
        self._close(caller)

    def _reject(self, caller: PendingConnection) -> None:
        if caller._is_leaving:
            self._close(caller)
            return
        self._on_rejected(caller)
        if caller.fault:
            self._end(caller, is_taken=False)
        else:
            self._close(caller)

    def _close(self, caller: PendingConnection) -> None:
        if caller.connection in self._callers:
            self._forget(caller)
        caller.connection.close()

    def _forget(self, caller: PendingConnection) -> None:
        del self._callers[caller.connection]
        with contextlib.suppress(KeyError, ValueError):  # wrapping it in TLS failed
            self._selector.unregister(caller.connection)

    def _complain(self, error: BaseException) -> None:
        """Logs an error once, until another one occurs."""
        text = f"Connections cannot be accepted: {error}"
        if text != self._last_logged:
            self._last_logged = text
            with contextlib.suppress(Exception):  # such as a full disk
                self._log(text)


def greeting_of_size(
    size: int, take: Callable[[AnySocket, bytes], bool]
) -> Callable[[PendingConnection], Greeting]:
    """Returns a greeting of a fixed size; `take` returns whether it accepts the hello."""

    def greet(caller: PendingConnection) -> Greeting:
        return take(caller.connection, (yield size))

    return greet
