"""Where the processes of a cluster meet: at the Spark driver, which shows what they print."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from terngrad.cluster.acceptor import Acceptor
from terngrad.spark.certificates import Certificates

_HELLO_BYTES = 1024  # of JSON and blanks
_HELLO_SECS = 10.0
_MORE_PENDING = 64  # callers at a time without a hello, besides the processes
_LAST_LINES_SECS = 5.0


class Seat(NamedTuple):
    """A process of a cluster."""

    job: str
    index: int

    @property
    def label(self) -> str:
        """First word of its lines."""
        return str(self.index) if self.job == "worker" else f"{self.job} {self.index}"


class Placement:
    """Which address each seat has; safe for threads."""

    def __init__(self, workers: int, ps: int, hosts: Collection[str]) -> None:
        """Starts with empty seats; the certificates are valid on the hosts."""
        self._hosts = hosts
        self.moved = ""  # why all must start anew
        self._sizes = {"worker": workers, "ps": ps}
        self._taken: dict[Seat, str] = {}
        self._changed = threading.Condition()

    def take(self, seat: Seat, address: str, secs: float) -> dict[str, list[str]]:
        """Gives a seat its address, and waits until all have one; returns them by job.

        A worker that comes again keeps its address, which is only its name. So does a ps on the
        same host, as all others know it.

        Raises:
          ValueError: the seat does not exist, a ps came again on another host, the host has no
            certificate, or others are missing after `secs`.
        """
        with self._changed:
            if seat.index not in range(self._sizes.get(seat.job, 0)):
                raise ValueError(f"there is no {seat.label}")
            before = self._taken.get(seat, address)
            host = _host(before if seat.job == "worker" else address)
            if self._sizes["ps"] and host not in self._hosts:  # a ps would refuse its certificate
                raise ValueError(
                    f"{seat.job} {seat.index} is on {host}, where there was no executor when the "
                    "cluster was made"
                )
            self._taken[seat] = before
            if seat.job == "ps" and _host(before) != _host(address):
                self.moved = f"ps {seat.index} moved from {_host(before)} to {_host(address)}"
                raise ValueError(self.moved)
            self._changed.notify_all()
            total = sum(self._sizes.values())
            if not self._changed.wait_for(lambda: len(self._taken) == total, secs):
                raise ValueError(
                    f"only {len(self._taken)} of {total} processes have started after {secs:.0f} "
                    "s: each needs a free core of an executor"
                )
            return {
                job: [self._taken[Seat(job, i)] for i in range(size)]
                for job, size in self._sizes.items()
            }


class Driver:
    """Listens for the processes of a cluster.

    Attributes:
      port: where it listens.
    """

    def __init__(
        self, certificates: Certificates, processes: int, secs: float, show: Callable[[str], None]
    ) -> None:
        """Listens at all addresses of this machine, to those who have the run's certificate.

        Args:
          certificates: of the run.
          processes: number of processes, which may all come at once.
          secs: how long a process may wait for the others.
          show: takes the lines of the processes.
        """
        self._context = certificates.context(ssl.Purpose.CLIENT_AUTH)
        self._secs = secs
        self._show = show
        self._placement: Placement | None = None
        self._told: set[ssl.SSLSocket] = set()  # bring lines
        self._asked: set[ssl.SSLSocket] = set()  # take requests
        self._stopped = False
        self._changed = threading.Condition()
        server = socket.create_server(("", 0))
        self.port = server.getsockname()[1]
        self._acceptor = Acceptor(
            server,
            _HELLO_BYTES,
            self._serve,
            show,
            most=2 * processes + _MORE_PENDING,
            timeout_secs=_HELLO_SECS,
            wrap=self._encrypted,
        )
        self._acceptor.start()

    def expect(self, placement: Placement) -> None:
        """Lets the processes of the next attempt meet."""
        self._placement = placement

    def stop(self) -> None:
        """Asks all processes, also those that come later, to save and end."""
        with self._changed:
            self._stopped = True
            for connection in self._asked:
                _ask_to_stop(connection)

    def show_rest(self) -> None:
        """Waits for the last lines of processes that have ended."""
        with self._changed:
            self._changed.wait_for(lambda: not self._told, _LAST_LINES_SECS)

    def close(self) -> None:
        """Listens no longer."""
        self._acceptor.close()

    def _encrypted(self, plain: socket.socket) -> ssl.SSLSocket:
        return self._context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)

    def _serve(self, connection: ssl.SSLSocket, hello: bytes) -> bool:
        """Serves a process in a thread; whoever has no certificate never comes so far."""
        connection.setblocking(True)
        threading.Thread(target=self._talk, args=(connection, hello), daemon=True).start()
        return True

    def _talk(self, connection: ssl.SSLSocket, said: bytes) -> None:
        """Serves one of the two connections of a process: its lines, or the driver's requests."""
        with (
            contextlib.suppress(OSError, ValueError, KeyError, TypeError),  # it is not answered
            connection,
            connection.makefile("r", encoding="utf-8", errors="replace") as lines,
        ):
            hello = json.loads(said)
            seat = Seat(hello["job"], hello["index"])
            if hello["tells"]:
                with self._known(connection, self._told):
                    for line in lines:
                        self._show(f"[{seat.label}] {line.rstrip()}")
                return
            if hello["address"]:
                _send(connection, json.dumps(self._answer(seat, hello["address"])))
            with self._known(connection, self._asked):
                if self._stopped:
                    _ask_to_stop(connection)
                lines.readline()  # the process says nothing more; this waits for its end

    def _answer(self, seat: Seat, address: str) -> Mapping[str, object]:
        try:
            return self._placement.take(seat, address, self._secs)
        except ValueError as error:
            return {"refused": str(error)}

    @contextlib.contextmanager
    def _known(self, connection: ssl.SSLSocket, connections: set[ssl.SSLSocket]) -> Iterator[None]:
        with self._changed:
            connections.add(connection)
        try:
            yield
        finally:
            with self._changed:
                connections.discard(connection)
                self._changed.notify_all()


class Line:
    """A process' line to the driver: a connection for each direction, as TLS needs one thread."""

    def __init__(
        self, address: tuple[str, int], certificates: Certificates, seat: Seat, own: str
    ) -> None:
        """Connects; `own` is the HOST:PORT that it asks a seat for, or "" if it needs none."""
        context = certificates.context(ssl.Purpose.SERVER_AUTH)

        def connect(*, tells: bool) -> ssl.SSLSocket:
            plain = socket.create_connection(address)
            connection = context.wrap_socket(plain, server_hostname=address[0])
            hello = {"job": seat.job, "index": seat.index, "address": own, "tells": tells}
            connection.sendall(json.dumps(hello).encode().ljust(_HELLO_BYTES))
            return connection

        self._up, self._down = connect(tells=True), connect(tells=False)
        self._heard = self._down.makefile("r", encoding="utf-8")

    def tell(self, line: str) -> None:
        """Sends a line to be shown; without a driver there is nobody to read it."""
        with contextlib.suppress(OSError):
            _send(self._up, line)

    def addresses(self) -> dict[str, list[str]]:
        """Waits for the addresses of all processes, by job.

        Raises:
          ValueError: the driver refused this one, and why.
        """
        told = json.loads(self._heard.readline() or '{"refused": "the driver is gone"}')
        if "refused" in told:
            raise ValueError(told["refused"])
        return told

    def requests(self) -> Iterator[str]:
        """Yields what the driver asks for."""
        with contextlib.suppress(OSError, ValueError):
            yield from map(str.strip, self._heard)

    def close(self) -> None:
        """Ends the connections, also for a thread that waits for requests."""
        for connection in (self._up, self._down):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


def _send(connection: ssl.SSLSocket, line: str) -> None:
    connection.sendall(f"{line}\n".encode())


def _ask_to_stop(connection: ssl.SSLSocket) -> None:
    with contextlib.suppress(OSError):
        _send(connection, "stop")


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")
