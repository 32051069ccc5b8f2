"""What processes of a training say to each other beside their gradients: lines of JSON over TCP.

The network must be trusted, as TensorFlow's own collectives demand. What does not speak this
language may knock all the same, and must do no harm.
"""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import threading
from collections.abc import Sequence

_LONGEST_HELLO = 1 << 16  # bytes of a message of one that is not known yet
_LONGEST_MESSAGE = 1 << 20


class MembershipError(ValueError):
    """Names the process that is missing, different or lost."""


class FinishedError(MembershipError):
    """The training is done: there is nothing to join any more."""


class DifferenceError(MembershipError):
    """Names what two processes do not have in common."""


class PortError(MembershipError):
    """Names a port at which this process cannot listen."""


class ForeignError(ValueError):
    """What came is no message: another kind of program is at the other end."""


class Peer:
    """A connection to another process.

    Attributes:
      rank: of the other process; -1 while it has not said.
      heard_at: when it was last heard of, on the clock of who watches it.
      batches: how far it said to be; see `Pulse`.
      left: it said that it ends.
      answers: its messages that are no signs of life; None after its last one.
    """

    def __init__(self, connection: socket.socket, rank: int = -1) -> None:
        """Takes over a connection."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rank = rank
        self.heard_at = 0.0
        self.batches: int | None = None
        self.left = False
        self.answers: queue.Queue[dict | None] = queue.Queue()
        self._connection = connection
        self._sending = threading.Lock()
        self._unread = b""
        self._longest = _LONGEST_HELLO

    def fileno(self) -> int:
        """Lets selectors wait for this connection."""
        return self._connection.fileno()

    def wait_at_most(self, secs: float) -> None:
        """Takes a silence of so long for the connection's end."""
        self._connection.settimeout(secs)

    def trust(self) -> None:
        """Waits without limit, and for long messages, from now on."""
        self._connection.settimeout(None)
        self._longest = _LONGEST_MESSAGE

    def send(self, message: dict) -> None:
        """Sends; a broken connection shows when receiving."""
        with self._sending, contextlib.suppress(OSError):
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict | None:
        """Waits for the next message; None where the connection ended.

        Raises:
          ForeignError: what came is no message.
        """
        while (message := self.next_message()) is None and self.fill():
            pass
        return message

    def fill(self) -> bool:
        """Waits for bytes, not for a whole message; False where the connection ended."""
        try:
            data = self._connection.recv(1 << 16)
        except OSError:
            return False
        self._unread += data
        return bool(data)

    def next_message(self) -> dict | None:
        """The next message, None while not all of it is here.

        Raises:
          ForeignError: what came is no message.
        """
        line, newline, rest = self._unread.partition(b"\n")
        if len(line) > self._longest:
            raise ForeignError(f"a message of more than {self._longest} bytes")
        if not newline:
            return None
        self._unread = rest
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            raise ForeignError("a line that is not JSON") from None
        if not isinstance(message, dict):
            raise ForeignError("a line that holds no object")
        return message

    def shut(self) -> None:
        """Ends sending; what was sent still arrives."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Ends the connection."""
        with contextlib.suppress(OSError):
            self._connection.close()


def name_of(rank: int, hosts: Sequence[str]) -> str:
    """What messages call a process."""
    return f"worker {rank} ({hosts[rank]})" if rank < len(hosts) else f"worker {rank}"


def split_address(address: str) -> tuple[str, int]:
    """Returns host and port of "host:port", also of "[::1]:2222".

    Raises:
      MembershipError: if it is not of that form.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise MembershipError(f"{address!r} must be host:port, with a port of 1 to 65535")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise MembershipError(f"{address!r}: an IPv6 address stands in brackets, [::1]:2222")
    return host.strip("[]"), int(port)
