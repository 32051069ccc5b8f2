"""A socket of our own for the frames of a stream: gRPC copies each message several times.

The stream stays open beside it. Over the stream the ps admits the worker, each side notices that
the other is lost, and the ps says why it ends. The ps also tells the worker a port there and a
token, which nobody else knows. A worker that cannot connect to that port goes on without.
"""

from __future__ import annotations

import contextlib
import select
import socket
import weakref
from collections.abc import Callable, Iterator

import numpy as np

from terngrad.cluster.encrypted import ChangedError, EncryptedSocket
from terngrad.cluster.silence import end_if_silent
from terngrad.service.members import Members
from terngrad.service.messages import FrameError

TOKEN_BYTES = 16
ACCEPTED = b"\x01"  # the answer of the ps to a token
_DIAL_SECS = 2.0  # for each step: a firewall may swallow the attempt
_SIZE_BYTES = 4  # before each message: its length, little-endian
_JOINED_BYTES = 1 << 16  # shorter messages travel with their length in one packet
_READ_BYTES = 1 << 18  # that wake a reader: fewer would wake it for each packet
_LONGEST_SLEEP_MS = 1000  # of a reader: old systems do not make room for as many


class DataConnection:
    """Sends and receives messages; one thread may iterate, another send, and any may `cut`."""

    def __init__(
        self,
        connected: socket.socket | EncryptedSocket,
        longest: int,
        timeout_secs: float,
        on_change: Callable[[ChangedError], object] = lambda error: None,
    ) -> None:
        """Takes ownership of a connected socket.

        Args:
          connected: the socket.
          longest: most bytes of a message; longer ones are refused.
          timeout_secs: time after which a silent process is lost. This ends a silent connection
            sooner, so that who uses it can open another.
          on_change: called if bytes have changed on the way, which ends the connection.
        """
        self._socket, self._longest, self._on_change = connected, longest, on_change
        weakref.finalize(self, connected.close)  # when no thread uses it any more
        self._readable = select.poll()
        self._readable.register(connected, select.POLLIN)
        connected.settimeout(None)
        end_if_silent(connected, timeout_secs / 2)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message: bytes) -> None:
        """Sends a message; waits until all of it is on its way.

        Raises:
          OSError: the connection has ended.
        """
        size = len(message).to_bytes(_SIZE_BYTES, "little")
        if len(message) < _JOINED_BYTES:
            self._socket.sendall(size + message)
        else:
            self._socket.sendall(size)
            self._socket.sendall(message)

    def end(self) -> None:
        """Tells the other side that this one sends no more."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        """Ends the connection; what was sent still arrives, unless messages are left unread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def __iter__(self) -> Iterator[memoryview]:
        """Yields messages until the connection ends, however it does.

        Raises:
          FrameError: a message is too long.
        """
        head = memoryview(bytearray(_SIZE_BYTES))
        while self._fill(head):
            size = int.from_bytes(head, "little")
            if size > self._longest:
                raise FrameError(f"a message has {size} bytes; allowed are {self._longest}")
            message = np.empty(size, np.uint8).data  # unlike a bytearray's, not filled before
            if self._fill(message):
                yield message

    def _fill(self, view: memoryview) -> bool:
        """Reads until a view is full; False if the connection ends before."""
        filled = 0
        try:
            while filled < len(view):
                if not (count := self._read(view[filled:])):
                    break
                filled += count
        except ChangedError as error:
            self._on_change(error)
        except OSError:
            pass
        return filled == len(view)

    def _read(self, view: memoryview) -> int:
        if isinstance(self._socket, EncryptedSocket):
            return self._socket.recv_into(view)
        # Sleeps in poll, not in recv: that takes what is there first, and would then wait for as
        # many bytes again, which may be more than the message has left.
        few = min(len(view), _READ_BYTES)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, few)
        while True:
            self._readable.poll(_LONGEST_SLEEP_MS)
            with contextlib.suppress(BlockingIOError):
                return self._socket.recv_into(view, 0, socket.MSG_DONTWAIT)


def dial(
    address: tuple[str, int],
    token: bytes,
    members: Members | None,
    longest: int,
    timeout_secs: float,
    on_change: Callable[[ChangedError], object] = lambda error: None,
) -> DataConnection:
    """Opens the connection that a ps has offered.

    Args:
      address: host of the ps, and the port that it named.
      token: that it gave this worker.
      members: who may be there; None = plain text.
      longest: see `DataConnection`.
      timeout_secs: likewise.
      on_change: likewise.

    Raises:
      OSError: it cannot be opened; the message says why.
    """
    with contextlib.ExitStack() as opened:
        connected = socket.create_connection(address, min(_DIAL_SECS, timeout_secs))
        if members:
            connected = EncryptedSocket(connected, members.client)
        opened.callback(connected.close)
        if members:
            connected.handshake()
            if why := connected.objection(members, address[0]):
                raise ConnectionRefusedError(why)
        connected.sendall(token)
        if connected.recv(len(ACCEPTED)) != ACCEPTED:
            raise ConnectionRefusedError("the ps did not accept it")
        opened.pop_all()
    return DataConnection(connected, longest, timeout_secs, on_change)
