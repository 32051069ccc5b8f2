"""Messages that processes of a training exchange beside their gradients: lines of JSON over TCP.

Without TLS (see `encrypted`) the network must be trusted, as for TensorFlow's own collectives.
Other programs may still connect by mistake, and must do no harm.
"""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import threading
from collections.abc import Sequence

from terngrad.cluster.encrypted import (
    FIRST_OCTET,
    ChangedError,
    EncryptedSocket,
    Encryption,
    EncryptionError,
)
from terngrad.cluster.pulse import Begun

CONTROL_PORT_ABOVE = 1000  # of the chief's own port, unless the user says otherwise
LAST_PORT = (1 << 16) - 1
_LONGEST_HELLO = 1 << 16  # bytes; for messages of a process that is not admitted yet
_LONGEST_MESSAGE = 1 << 20
_LONGEST_QUOTED = 200  # characters of what an unknown process has said


class MembershipError(ValueError):
    """Names the process that is missing, different or lost."""


class SharedError(ValueError):
    """An error that all processes have at once: the text blames none, and the others name none."""


class OtherFailedError(MembershipError):
    """Another process failed before all had joined; the text names it, and says why."""


class FinishedError(MembershipError):
    """The training is complete, so no process can join it any more."""


class DifferenceError(MembershipError):
    """Names a setting that differs between two processes."""


class PortError(MembershipError):
    """Names a port at which this process cannot listen."""


class ForeignError(ValueError):
    """The data received is not a message: another kind of program is at the other end."""


class Peer:
    """A connection to another process.

    Attributes:
      rank: index of the other process; -1 until it introduces itself.
      heard_at: time of its last message, on the clock of the watching `Membership`.
      batches: its last reported progress; see `Pulse`.
      left: whether it announced that it ends.
      is_leaving: whether it has begun its last operation, and may still wait for others to leave.
      begun: the operations with the others that it has begun, as it last reported.
      answers: its messages other than signs of life; None after the last one.
      fault: what is wrong with the other side, as TLS says; "" = nothing that is known.
      changed: that bytes have changed on the way, which is nobody's fault; None = they have not.
    """

    def __init__(self, connection: socket.socket | EncryptedSocket, rank: int = -1) -> None:
        """Takes ownership of a connection."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rank = rank
        self.heard_at = 0.0
        self.batches: int | None = None
        self.left = False
        self.is_leaving = False
        self.begun = Begun()
        self.answers: queue.Queue[dict | None] = queue.Queue()
        self.fault = ""
        self.changed: ChangedError | None = None
        self._connection: socket.socket | EncryptedSocket = connection
        self._sending = threading.Lock()
        self._unread = b""
        self._longest = _LONGEST_HELLO

    def fileno(self) -> int:
        """Lets selectors wait for this connection."""
        return self._connection.fileno()

    def is_encrypted(self) -> bool | None:
        """Whether the first byte of an accepted connection is one of TLS; None: it has ended."""
        try:
            first = self._connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return None
        return first == FIRST_OCTET if first else None

    def encrypt(self, encryption: Encryption) -> None:
        """Lets an accepted connection, from which bytes have arrived, use TLS; never waits.

        Raises:
          OSError: it has ended meanwhile.
        """
        context = encryption.server
        self._connection = EncryptedSocket(self._connection, context, server_side=True)
        self._connection.settimeout(0)

    def objection(self, encryption: Encryption, address: str) -> str:
        """Returns why the other side is not the process of HOST:PORT; "" if its host is that."""
        return self._connection.objection(encryption, split_address(address)[0])

    def wait_at_most(self, secs: float) -> None:
        """Treats a silence of this length as the end of the connection."""
        self._connection.settimeout(secs)

    def trust(self) -> None:
        """From now on waits without a time limit and accepts long messages."""
        self._connection.settimeout(None)
        self._longest = _LONGEST_MESSAGE

    def send(self, message: dict) -> None:
        """Sends a message; a broken connection shows only in `receive`."""
        with self._sending, contextlib.suppress(OSError):
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict | None:
        """Waits for the next message; returns None if the connection ended.

        Raises:
          ForeignError: the data received is not a message.
        """
        while (message := self.next_message()) is None and self.fill():
            pass
        return message

    def fill(self) -> bool:
        """Waits for bytes, not for a whole message; returns False if the connection ended."""
        try:
            data = self._connection.recv(1 << 16)
        except BlockingIOError:  # a part of what TLS needs
            return True
        except OSError as error:
            self.fault = str(error) if isinstance(error, EncryptionError) else ""
            self.changed = error if isinstance(error, ChangedError) else None
            return False
        self._unread += data
        return bool(data)

    def next_message(self) -> dict | None:
        """Returns the next message, or None until all of it has arrived.

        Raises:
          ForeignError: the data received is not a message.
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
            raise ForeignError("a line that is not a JSON object")
        return message

    def shut(self) -> None:
        """Ends sending; messages already sent still arrive."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Closes the connection."""
        with contextlib.suppress(OSError):
            self._connection.close()


def printable(text: object, longest: int = _LONGEST_QUOTED) -> str:
    """Returns what another process has said, for a message or log: one line that no one can forge.

    Characters that are not printable, such as line ends and escape sequences, are escaped.
    """
    said = str(text)[:longest]
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in said)


def name_of(rank: int, hosts: Sequence[str]) -> str:
    """Returns the name of a process in messages."""
    return f"worker {rank} ({hosts[rank]})" if rank < len(hosts) else f"worker {rank}"


def split_address(address: str) -> tuple[str, int]:
    """Splits "host:port" or "[::1]:2222" into host and port.

    Raises:
      MembershipError: the address has another form.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or len(port) > 5 or not 0 < int(port) <= LAST_PORT:
        raise MembershipError(f"{address!r} must be host:port, with a port from 1 to {LAST_PORT}")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise MembershipError(f"{address!r}: an IPv6 address must be in brackets, as [::1]:2222")
    return host.strip("[]"), int(port)
