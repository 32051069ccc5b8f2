"""Accepts connections from anybody, and reads what their callers send first.

One thread serves all and waits for none, so that callers cost no threads, and silent ones keep
nobody out. Neither a lack of descriptors nor any other error ends it.
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

Connection = socket.socket | EncryptedSocket

# What is heard of a caller: yields how many bytes come next, gets them, and returns whether the
# connection was taken. If not, it is closed after what was sent to it has arrived.
Greeting = Generator[int, bytes, bool]

_LOOK_SECS = 0.5  # where the end of listening wakes no thread
_PAUSE_SECS = 0.1  # after an error, such as a lack of descriptors
_LEAVE_SECS = 2.0  # for a caller that is not taken to read why
_MOST_AT_ONCE = 1 << 16  # bytes
_UNFINISHED = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class PendingConnection:
    """A connection that is not taken yet, and does not block.

    Attributes:
      connection: with TLS, if there is any.
      address: of its host.
      fault: what is wrong with it, as TLS says; "" = nothing that is known.
    """

    def __init__(self, plain: socket.socket, address: str, until: float) -> None:
        self.connection: Connection = plain
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
        most: int,
        most_of_address: int | None = None,
        timeout_secs: float,
        wrap: Callable[[socket.socket], Connection] = lambda plain: plain,
        on_rejected: Callable[[PendingConnection], object] = lambda caller: None,
        look: Callable[[], object] = lambda: None,
    ) -> None:
        """Accepts nothing before `start`.

        Args:
          listening: socket that listens; owned from now on.
          greet: hears a caller; see `Greeting`. All run in one thread, for which callers wait.
          log: writes a line about an error of this process.
          most: connections at a time that are not taken; a further one ends the oldest.
          most_of_address: likewise, of one address; None = `most`.
          timeout_secs: in which a greeting must be over.
          wrap: makes of a connection, whose first byte is there, what is read; must not wait for a
            handshake.
          on_rejected: gets each connection that ended in its greeting, but for those that
            closed without a word.
          look: called about twice a second.

        Raises:
          OSError: there is no descriptor left.
        """
        listening.setblocking(False)
        self._listening, self._greet, self._log = listening, greet, log
        self._most, self._most_of_address = most, most_of_address or most
        self._timeout_secs, self._wrap, self._on_rejected = timeout_secs, wrap, on_rejected
        self._look, self._looked_at = look, 0.0
        self._callers: dict[Connection, PendingConnection] = {}  # the oldest first
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
                self._turn()
            except _GreetingError as error:  # its caller is closed, so there is no need to pause
                self._complain(error.__cause__)
            except Exception as error:  # whatever it is, the next caller may be a worker
                self._complain(error)
                time.sleep(_PAUSE_SECS)
        self._close_all()

    def _close_all(self) -> None:
        for each in (*self._callers, self._listening, self._selector):
            each.close()

    def _turn(self) -> None:
        """Waits until something happens, and handles it."""
        ends = (caller._until for caller in self._callers.values())
        left = min(ends, default=float("inf")) - time.monotonic()
        for key, _ in self._selector.select(min(max(0.0, left), _LOOK_SECS)):
            if key.fileobj is self._listening:
                self._accept()
            elif caller := self._callers.get(key.fileobj):  # not ended in this turn
                self._read(caller)
        now = time.monotonic()
        for caller in [each for each in self._callers.values() if each._until <= now]:
            self._reject(caller)
        if now - self._looked_at >= _LOOK_SECS:
            self._looked_at = now
            self._look()

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
        of_host = counts[host] >= self._most_of_address
        if of_host or len(self._callers) >= self._most:
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
                self._go_on(caller)
        except _UNFINISHED:
            return
        except OSError as error:  # it has gone, or is not what TLS expects
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
        self._go_on(caller)
        return True

    def _go_on(self, caller: PendingConnection) -> None:
        """Gives a greeting the bytes it asked for; it returns how many it needs next."""
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
            more = caller.connection.recv(min(left, _MOST_AT_ONCE))
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
            if skip(_MOST_AT_ONCE):
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
        with contextlib.suppress(KeyError, ValueError):  # what encrypts it was not made
            self._selector.unregister(caller.connection)

    def _complain(self, error: BaseException) -> None:
        """Logs an error once, until another one occurs."""
        text = f"Connections cannot be accepted: {error}"
        if text != self._last_logged:
            self._last_logged = text
            with contextlib.suppress(Exception):  # such as a full disk
                self._log(text)


def fixed(
    size: int, take: Callable[[Connection, bytes], bool]
) -> Callable[[PendingConnection], Greeting]:
    """Returns a greeting of a fixed size; `take` returns whether it accepts the hello."""

    def greet(caller: PendingConnection) -> Greeting:
        return take(caller.connection, (yield size))

    return greet
