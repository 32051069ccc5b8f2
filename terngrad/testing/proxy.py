"""A TCP proxy that injects planned faults into connections, as a bad network would."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import random
import socket
import struct
import threading
import time
from collections.abc import Sequence

from terngrad.cluster.addresses import split_address

_CHUNK_BYTES = 1 << 12
_DELAY_SECS = 0.02  # of each chunk
_BYTES_PER_SEC = 200_000
_LONGEST_AFTER = 12  # doublings of the bytes before a fault
_CONNECT_SECS = 5.0


class FaultKind(enum.Enum):
    """A kind of fault, in one direction unless stated otherwise."""

    DELAY = "each chunk arrives late"
    THROTTLE = "few bytes a second pass"
    CUT = "both sides are reset"
    HALF_CLOSE = "no more bytes pass, and the receiver reads the end"
    CORRUPT = "one bit changes"


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault of a connection.

    Attributes:
      kind: what happens.
      to_server: the direction in which it happens.
      after_bytes: when it happens, in bytes of that direction; delays begin at once.
      bit: the bit of the next byte that CORRUPT changes.
    """

    kind: FaultKind
    to_server: bool
    after_bytes: int
    bit: int


def plan(seed: int, kinds: Sequence[FaultKind], connections: int) -> list[Fault]:
    """Returns the faults of the first connections; the seed alone determines them."""
    draw = random.Random(seed)
    return [
        Fault(
            kind=draw.choice(kinds),
            to_server=draw.random() < 0.5,
            after_bytes=int(2 ** draw.uniform(0, _LONGEST_AFTER)),
            bit=draw.randrange(8),
        )
        for _ in range(connections)
    ]


class Proxy(contextlib.AbstractContextManager):
    """Listens at a free port of 127.0.0.1; its first connections have the faults of a plan.

    Attributes:
      address: "host:port" at which it listens.
      connections: number of connections so far.
    """

    def __init__(self, target: str, faults: Sequence[Fault]) -> None:
        """Passes connections on to `target`, "host:port"."""
        self._target, self._faults = split_address(target), faults
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def __exit__(self, *exception: object) -> None:
        """Ends all connections."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            _reset(*self._open)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener was closed
            while True:
                client, _ = self._listener.accept()
                fault = dict(enumerate(self._faults)).get(self.connections)
                self.connections += 1
                threading.Thread(target=self._pass_on, args=(client, fault), daemon=True).start()

    def _pass_on(self, client: socket.socket, fault: Fault | None) -> None:
        try:
            server = socket.create_connection(self._target, _CONNECT_SECS)
        except OSError:  # the server does not listen yet
            _reset(client)
            return
        server.settimeout(None)
        both = {client, server}
        with self._lock:
            self._open |= both
        back = threading.Thread(
            target=_pump,
            args=(server, client, fault if fault and not fault.to_server else None),
            daemon=True,
        )
        back.start()
        _pump(client, server, fault if fault and fault.to_server else None)
        back.join()
        with self._lock:
            self._open -= both
        for each in both:
            each.close()


def _pump(source: socket.socket, sink: socket.socket, fault: Fault | None) -> None:
    """Passes bytes on in one direction until its end, or until a fault ends it."""
    passed = 0
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK_BYTES):
            if fault and not (data := _disturbed(data, passed, fault)):
                break
            sink.sendall(data)
            passed += len(data)
    if fault and fault.kind is FaultKind.CUT:
        _reset(source, sink)
        return
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def _disturbed(data: bytes, passed: int, fault: Fault) -> bytes:
    """Returns what is passed on of a chunk, perhaps later; b"" ends the direction."""
    if fault.kind is FaultKind.DELAY:
        time.sleep(_DELAY_SECS)
        return data
    if fault.kind is FaultKind.THROTTLE:
        time.sleep(len(data) / _BYTES_PER_SEC)
        return data
    at = fault.after_bytes - passed
    if not 0 <= at < len(data):
        return data
    if fault.kind is FaultKind.CORRUPT:
        return data[:at] + bytes([data[at] ^ 1 << fault.bit]) + data[at + 1 :]
    return b""


def _reset(*sockets: socket.socket) -> None:
    """Ends connections at once; their other ends get an error instead of an end."""
    for each in sockets:
        with contextlib.suppress(OSError):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            each.shutdown(socket.SHUT_RDWR)
            each.close()
