"""Messages over a socket, plain or with TLS: 4 bytes of length, little-endian, then the message.

A length with its highest bit set begins a control message: a heartbeat, which is empty, or the
reason why this side ends. A side that receives nothing for too long ends the channel, so that it
can open another. docs/wire-format.md describes the bytes.
"""

from __future__ import annotations

import contextlib
import enum
import json
import queue
import select
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from terngrad.cluster.errors import LONGEST_REASON
from terngrad.connect.acceptor import AnySocket
from terngrad.connect.tls import ChangedError, EncryptedSocket, EncryptionError, has_ended

_PROBES = 4
_SIZE_BYTES = 4
_CONTROL = 1 << 31  # bit of the length that marks a control message
_LONGEST_ENDING = 1 << 13
_HEARTBEAT = _CONTROL.to_bytes(_SIZE_BYTES, "little")
_JOINED_BYTES = 1 << 16  # shorter messages are copied, behind their lengths
_MORE = getattr(socket, "MSG_MORE", 0)  # a length in a packet of its own would wake the reader
_READ_BYTES = 1 << 18  # so many bytes wake a reader; with fewer each packet would wake it
_LONGEST_SLEEP_SECS = 1.0  # of a reader: buffers of old systems may never hold _READ_BYTES
_BEATS = 4  # heartbeats in the silence that ends a channel
_LONGEST_BEAT_SECS, _SHORTEST_BEAT_SECS = 5.0, 0.05
_LINGER_SECS = 2.0  # for the other side to read why this one ends


def end_if_silent(
    connection: socket.socket | EncryptedSocket, secs: float, *, while_sending: bool = True
) -> None:
    """Lets the system end a connection whose other side has not answered for `secs` seconds.

    Systems other than Linux lack some of the options, and end it later.

    Args:
      connection: the connection.
      secs: the limit.
      while_sending: whether the limit holds for data on their way, too. Then Linux also ends a
        connection whose other side answers, but has had no room for more data for so long.
    """
    whole = max(1, min(round(secs), 20_000))
    options = {
        "TCP_KEEPIDLE": max(1, whole // _PROBES),
        "TCP_KEEPINTVL": max(1, whole // _PROBES),
        "TCP_KEEPCNT": _PROBES,
    }
    if while_sending:
        options["TCP_USER_TIMEOUT"] = 1000 * whole
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in options.items():
        if (option := getattr(socket, name, None)) is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


class FrameError(ValueError):
    """The bytes are not a valid message."""


class ChannelEnd(enum.Enum):
    """How a channel ended."""

    DONE = "done"  # the training is over
    REFUSED = "refused"  # what this side sent; it need not try again
    CLOSED = "ended"  # it may open another channel
    UNAVAILABLE = "unavailable"  # the other side cannot take it now
    LOST = "lost"  # the connection broke
    SILENT = "silent"  # nothing was received for too long


class Ending(NamedTuple):
    """How a channel ended, and why, in words."""

    end: ChannelEnd
    why: str = ""


class Channel:
    """Sends and receives messages; one thread may iterate, others may send, and any may `cut`.

    Attributes:
      ending: how it ended; None until the iteration has found its end.
      fault: the TLS error of the other side; "" = none.
      changed: set if bytes have changed on the way, for which neither side is to blame; else None.
      beat_secs: time between its heartbeats.
      silence_secs: time without a byte from the other side after which the channel ends.
    """

    def __init__(
        self,
        connected: AnySocket,
        longest: int,
        timeout_secs: float,
        their_timeout_secs: float | None = None,
    ) -> None:
        """Takes ownership of a connected socket.

        Args:
          connected: the socket.
          longest: most bytes of a message; longer ones are refused.
          timeout_secs: time after which a silent process is lost. Half of it ends a silent channel,
            so that its user can open another.
          their_timeout_secs: likewise, of the other side; None = the same.
        """
        self.ending: Ending | None = None
        self.changed: ChangedError | None = None
        self.fault = ""
        self._is_cut = False
        self._socket, self._longest, self.silence_secs = connected, longest, timeout_secs / 2
        beat_secs = (their_timeout_secs or timeout_secs) / 2 / _BEATS
        self.beat_secs = min(max(beat_secs, _SHORTEST_BEAT_SECS), _LONGEST_BEAT_SECS)
        self._received_at = self._sent_at = time.monotonic()
        self._sending, self._unread = threading.Lock(), threading.Event()
        self._unread.set()  # while no thread iterates
        self._closing = weakref.finalize(self, connected.close)  # when no thread uses it any more
        self._readable = select.poll()
        self._readable.register(connected, select.POLLIN)
        connected.settimeout(None)
        end_if_silent(connected, self.silence_secs)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def is_open(self) -> bool:
        """Whether no end of the channel has been found yet."""
        return not self._is_cut and self.ending is None

    @property
    def has_left(self) -> bool:
        """Whether the other side has ended, and all that it sent was read."""
        return not self.is_open or has_ended(self._socket)

    def limit_silence(self, secs: float) -> None:
        """Sets the silence after which the channel ends."""
        self.silence_secs, self._received_at = secs, time.monotonic()

    def release(self) -> None:
        """Gives up the ownership of the socket, which stays open and no longer blocks."""
        self._closing.detach()
        self._socket.settimeout(0)

    @property
    def certificate(self) -> bytes:
        """Certificate of the other side, in DER; b"" without TLS."""
        return self._socket.certificate if isinstance(self._socket, EncryptedSocket) else b""

    def send(self, message: bytes) -> None:
        """Sends a message; waits until all of it is on its way.

        Raises:
          OSError: the channel has ended.
        """
        self._send(len(message), message)

    def keep_alive(self) -> None:
        """Sends a heartbeat if nothing was sent lately; never waits."""
        is_due = time.monotonic() - self._sent_at >= self.beat_secs / 2
        if not is_due or not self._sending.acquire(blocking=False):
            return
        try:
            poll = select.poll()
            poll.register(self._socket, select.POLLOUT)
            if poll.poll(0):  # there is room for much more than this
                self._socket.sendall(_HEARTBEAT)
        except (OSError, ValueError):  # the reader notices it, too
            pass
        finally:
            self._sending.release()

    def end(self, ending: Ending | None = None) -> None:
        """Stops sending; sends the reason, if any."""
        with contextlib.suppress(OSError):
            if ending:
                text = json.dumps([ending.end.value, ending.why[:LONGEST_REASON]]).encode()
                self._send(_CONTROL | len(text), text)
            self._socket.shutdown(socket.SHUT_WR)

    def finish(self, ending: Ending) -> None:
        """Ends the channel and waits briefly, so that the other side reads the reason."""
        self.end(ending)
        self.drain(_LINGER_SECS)

    def drain(self, secs: float) -> None:
        """Drops incoming messages until the other side has ended, or for `secs` seconds; then cuts.

        If another thread iterates, that one reads them.
        """
        deadline, rest = time.monotonic() + secs, memoryview(bytearray(1 << 16))
        with contextlib.suppress(OSError, ValueError):
            if not self._is_cut and self._unread.wait(secs):
                while (left := deadline - time.monotonic()) > 0 and self._receive(rest, left):
                    pass
        self.cut()

    def cut(self) -> None:
        """Ends the channel; what was sent still arrives, unless messages are left unread."""
        self._is_cut = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def __iter__(self) -> Iterator[memoryview]:
        """Yields messages until the channel ends; see `ending` for how it ended.

        Raises:
          FrameError: a message is too long.
        """
        self._unread.clear()
        try:
            yield from self._messages()
        finally:
            self._unread.set()

    def _messages(self) -> Iterator[memoryview]:
        head = memoryview(bytearray(_SIZE_BYTES))
        while not self.ending and self._fill(head):
            if (size := int.from_bytes(head, "little")) & _CONTROL:
                self._receive_control(size ^ _CONTROL)
            elif size > self._longest:
                raise FrameError(f"a message has {size} bytes; allowed are {self._longest}")
            else:
                message = np.empty(size, np.uint8).data  # unlike a bytearray's, not filled before
                if self._fill(message):
                    yield message

    def _receive_control(self, size: int) -> None:
        """Reads a control message of the channel, after its length."""
        if not size:
            return
        if size > _LONGEST_ENDING:
            raise FrameError(f"an ending has {size} bytes; allowed are {_LONGEST_ENDING}")
        text = bytearray(size)
        if not self._fill(memoryview(text)):
            return
        try:
            name, why = json.loads(text)
            self.ending = Ending(ChannelEnd(name), str(why))
        except (ValueError, TypeError, RecursionError):
            raise FrameError("a control message of the channel cannot be read") from None

    def _send(self, size: int, message: bytes) -> None:
        head = size.to_bytes(_SIZE_BYTES, "little")
        with self._sending:
            if len(message) < _JOINED_BYTES:
                self._socket.sendall(head + message)
            elif isinstance(self._socket, EncryptedSocket):
                self._socket.sendall(head)
                self._socket.sendall(message)
            else:
                self._socket.sendall(head, _MORE)
                self._socket.sendall(message)
            self._sent_at = time.monotonic()

    def _fill(self, view: memoryview) -> bool:
        """Reads until a view is full; False if the channel ends before."""
        filled = 0
        try:
            while filled < len(view):
                if not (count := self._receive(view[filled:], self.silence_secs)):
                    self.ending = Ending(ChannelEnd.LOST, "its connection ended")
                    return False
                filled += count
        except TimeoutError:
            self.ending = Ending(
                ChannelEnd.SILENT, f"nothing was received for {self.silence_secs:g} s"
            )
            self.cut()
        except OSError as error:
            self.changed = error if isinstance(error, ChangedError) else None
            self.fault = str(error) if isinstance(error, EncryptionError) else ""
            self.ending = Ending(ChannelEnd.LOST, error.strerror or str(error))
        return filled == len(view)

    def _receive(self, view: memoryview, secs: float) -> int:
        """Returns how many bytes have come, 0 at the end; TimeoutError after a silence."""
        is_plain = not isinstance(self._socket, EncryptedSocket)
        if is_plain:
            # Sleeps in poll, not in recv: that takes what is there first, and would then wait for
            # as many bytes again, which may be more than the message has left.
            few = min(len(view), _READ_BYTES)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, few)
        nap_secs = min(secs, _LONGEST_SLEEP_SECS)
        while True:
            try:
                if is_plain:
                    self._readable.poll(1000 * nap_secs)
                    count = self._socket.recv_into(view, 0, socket.MSG_DONTWAIT)
                else:
                    count = self._socket.recv_into(view, nap_secs)
            except (BlockingIOError, TimeoutError) as error:
                if isinstance(error, TimeoutError) and is_plain:  # of the system: ETIMEDOUT
                    raise
                if time.monotonic() - self._received_at > secs:
                    raise TimeoutError from None
                continue
            self._received_at = time.monotonic()
            return count


class KeepAlive:
    """A thread that sends heartbeats on all open channels of this process."""

    def __init__(self) -> None:
        """Starts without channels."""
        self._channels: weakref.WeakSet[Channel] = weakref.WeakSet()
        self._changed, self._over = threading.Condition(), False
        threading.Thread(target=self._run, daemon=True).start()

    def add(self, channel: Channel) -> None:
        """Keeps a channel alive until it ends."""
        with self._changed:
            self._channels.add(channel)
            self._changed.notify_all()

    def cut(self) -> None:
        """Cuts all channels."""
        for channel in self._open():
            channel.cut()

    def stop(self) -> None:
        """Ends the thread."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    @property
    def is_idle(self) -> bool:
        """Whether no channel is open."""
        return not self._open()

    def _open(self) -> list[Channel]:
        with self._changed:
            return [channel for channel in self._channels if channel.is_open]

    def _run(self) -> None:
        while not self._over:
            channels = self._open()
            for channel in channels:
                channel.keep_alive()
            secs = min((each.beat_secs for each in channels), default=_LONGEST_BEAT_SECS)
            channels = channel = None  # so that unused ones are closed
            with self._changed:
                if not self._over:
                    self._changed.wait(secs)


class Outbox:
    """A queue of messages that a channel sends; any thread may put.

    Once nothing is sent any more, it drops what waits and what is put.

    Attributes:
      waiting_bytes: bytes of the waiting messages.
    """

    def __init__(self, channel: Channel | None = None) -> None:
        """Starts empty; without a channel nothing is sent."""
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._channel, self._is_over = channel, channel is None
        self.waiting_bytes = 0

    def put(self, message: bytes) -> None:
        """Adds a message; never waits."""
        with self._lock:
            if not self._is_over:
                self.waiting_bytes += len(message)
                self._queue.put(message)

    def close(self) -> None:
        """Ends `send_all` after the waiting messages."""
        self._queue.put(None)

    def cut(self) -> None:
        """Ends the channel at once and drops the waiting messages."""
        self._drop()
        self.close()
        if self._channel:
            self._channel.cut()

    def __len__(self) -> int:
        """Number of waiting messages."""
        return self._queue.qsize()

    def send_all(self) -> None:
        """Sends the messages until the outbox is closed, or the channel has ended."""
        for message in iter(self._queue.get, None):
            with self._lock:
                self.waiting_bytes -= len(message)
            try:
                self._channel.send(message)
            except OSError:  # the reader notices it, too
                self._channel.cut()
                break
        self._drop()

    def _drop(self) -> None:
        """Drops what waits and what is put later: a link may keep its last outbox for long."""
        with self._lock:
            self._is_over = True
            with contextlib.suppress(queue.Empty):
                while True:
                    self.waiting_bytes -= len(self._queue.get_nowait() or b"")
