"""The part of the Spark driver: processes get each other's addresses, and it shows their output."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from terngrad.connect.acceptor import Acceptor, greeting_of_size
from terngrad.spark.certificates import Certificates

_HELLO_BYTES = 1024  # of JSON and blanks
_HELLO_SECS = 10.0
_MORE_PENDING = 64  # callers at a time without a hello, besides the processes
_LAST_LINES_SECS = 5.0


class ProcessId(NamedTuple):
    """A process of a cluster."""

    job: str
    index: int

    @property
    def label(self) -> str:
        """First word of its lines."""
        return str(self.index) if self.job == "worker" else f"{self.job} {self.index}"


class Placement:
    """The addresses of the processes, once all run at the same time; safe for threads.

    Attributes:
      moved: why all processes must be restarted; "" = they need not.
      is_stopped: whether `stop` ended it.
    """

    def __init__(self, workers: int, ps: int, hosts: Collection[str]) -> None:
        """Starts without processes; the certificates are valid on the hosts."""
        self.moved = ""
        self.is_stopped = False
        self._hosts = hosts
        self._sizes = {"worker": workers, "ps": ps}
        self._running: dict[ProcessId, str] = {}
        self._addresses: dict[ProcessId, str] = {}  # since all have started
        self._end = ""
        self._changed = threading.Condition()

    @property
    def num_running(self) -> int:
        """Number of processes that run now."""
        return len(self._running)

    def enter(self, process: ProcessId, address: str) -> None:
        """Registers a process, unless it is refused."""
        with self._changed:
            if not self._refusal(process, address):
                self._running[process] = address
            if not self._addresses and len(self._running) == sum(self._sizes.values()):
                self._addresses = dict(self._running)
            self._changed.notify_all()

    def leave(self, process: ProcessId, address: str) -> None:
        """Removes a process; one that Spark has started in its place stays."""
        with self._changed:
            if self._running.get(process) == address:
                del self._running[process]

    def wait_for_addresses(self, process: ProcessId, address: str) -> dict[str, list[str]]:
        """Returns the addresses of all processes, by job, once all have started.

        A restarted worker keeps its address, which is only its name. So does a ps that is
        restarted on the same host, because all others know it.

        Raises:
          ValueError: there is no such process, a ps came again on another host, the host has no
            certificate, or the processes end.
        """
        with self._changed:
            if refusal := self._refusal(process, address):
                raise ValueError(refusal)
            self._changed.wait_for(lambda: self._addresses or self._end)
            if self._end:
                raise ValueError(self._end)
            return {
                job: [self._addresses[ProcessId(job, i)] for i in range(size)]
                for job, size in self._sizes.items()
            }

    def wait_for_start(self, secs: float) -> bool:
        """Waits until all have started, or some have ended; False after `secs` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._addresses or self._end), secs)

    def end(self, why: str) -> None:
        """Refuses processes from now on, also those that wait."""
        with self._changed:
            self._end = why
            self._changed.notify_all()

    def stop(self) -> None:
        """Ends the wait for a start; does nothing if all have started."""
        with self._changed:
            if not self._addresses:
                self.is_stopped = True
                self.end("the cluster was stopped")

    def _refusal(self, process: ProcessId, address: str) -> str:
        """Returns why a process may not take part, "" if it may."""
        size = self._sizes.get(process.job, 0)
        if process.index not in range(size):
            allowed = f"allowed are 0 to {size - 1}" if size else "this cluster has none"
            return f"there is no {process.job} {process.index}; {allowed}"
        known = self._addresses.get(process, address)
        host = _host(known if process.job == "worker" else address)
        if self._sizes["ps"] and host not in self._hosts:  # a ps would refuse its certificate
            return (
                f"{process.job} {process.index} is on {host}, where there was no executor when the "
                "cluster was made"
            )
        if process.job == "ps" and _host(known) != _host(address):
            self.moved = f"ps {process.index} moved from {_host(known)} to {_host(address)}"
            return self.moved
        return ""


class Driver:
    """Listens for the processes of a cluster.

    Attributes:
      port: where it listens.
      is_stopped: whether `stop` was called.
    """

    def __init__(
        self, certificates: Certificates, processes: int, show: Callable[[str], None]
    ) -> None:
        """Listens at all addresses of this machine, for processes with the run's certificate.

        Args:
          certificates: of the run.
          processes: number of processes, which may all come at once.
          show: takes the lines of the processes.
        """
        self._context = certificates.context(ssl.Purpose.CLIENT_AUTH)
        self._show = show
        self._placement = Placement(0, 0, ())
        self._outputs: set[ssl.SSLSocket] = set()  # bring lines
        self._controls: set[ssl.SSLSocket] = set()  # take requests
        self.is_stopped = False
        self._changed = threading.Condition()
        server = socket.create_server(("", 0))
        self.port = server.getsockname()[1]
        self._acceptor = Acceptor(
            server,
            greeting_of_size(_HELLO_BYTES, self._serve),
            show,
            max_connections=2 * processes + _MORE_PENDING,
            timeout_secs=_HELLO_SECS,
            wrap=self._encrypted,
        )
        self._acceptor.start()

    def serve(self, placement: Placement) -> None:
        """Serves the processes of the next attempt from now on; none starts after `stop`."""
        with self._changed:
            self._placement = placement
            if self.is_stopped:
                placement.stop()

    def stop(self) -> None:
        """Asks all processes, also late ones, to save and end; none starts if others still wait."""
        with self._changed:
            self.is_stopped = True
            self._placement.stop()
            for connection in self._controls:
                _ask_to_stop(connection)

    def show_rest(self) -> None:
        """Waits for the last lines of processes that have ended."""
        with self._changed:
            self._changed.wait_for(lambda: not self._outputs, _LAST_LINES_SECS)

    def close(self) -> None:
        """Stops listening."""
        self._acceptor.close()

    def _encrypted(self, plain: socket.socket) -> ssl.SSLSocket:
        return self._context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)

    def _serve(self, connection: ssl.SSLSocket, hello: bytes) -> bool:
        """Serves a process in a thread; TLS has rejected callers without a certificate."""
        connection.setblocking(True)
        threading.Thread(
            target=self._serve_connection, args=(connection, hello), daemon=True
        ).start()
        return True

    def _serve_connection(self, connection: ssl.SSLSocket, first: bytes) -> None:
        """Serves one of the two connections of a process: its lines, or the driver's requests."""
        with (
            contextlib.suppress(OSError, ValueError, KeyError, TypeError),  # it is not answered
            connection,
            connection.makefile("r", encoding="utf-8", errors="replace") as lines,
        ):
            hello = json.loads(first)
            process, address = ProcessId(hello["job"], hello["index"]), hello["address"]
            if hello["is_output"]:
                with (
                    self._known(connection, self._outputs),
                    _running(self._placement, process, address),
                ):
                    for line in lines:
                        self._show(f"[{process.label}] {line.rstrip()}")
                return
            if hello["needs_addresses"]:
                _send(connection, json.dumps(self._answer(process, address)))
            with self._known(connection, self._controls):
                if self.is_stopped:
                    _ask_to_stop(connection)
                lines.readline()  # the process sends nothing more; this waits for its end

    def _answer(self, process: ProcessId, address: str) -> Mapping[str, object]:
        try:
            return self._placement.wait_for_addresses(process, address)
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


class DriverConnection:
    """A process' connections to the driver, one for each direction: TLS needs one thread."""

    def __init__(
        self,
        address: tuple[str, int],
        certificates: Certificates,
        process: ProcessId,
        own: str = "",
        *,
        needs_addresses: bool = False,
    ) -> None:
        """Connects.

        Args:
          address: of the driver.
          certificates: of the run.
          process: this one.
          own: its HOST:PORT, if others need it.
          needs_addresses: whether it asks for the addresses of the others.
        """
        context = certificates.context(ssl.Purpose.SERVER_AUTH)
        hello = {
            "job": process.job,
            "index": process.index,
            "address": own,
            "needs_addresses": needs_addresses,
        }

        def connect(*, is_output: bool) -> ssl.SSLSocket:
            plain = socket.create_connection(address)
            connection = context.wrap_socket(plain, server_hostname=address[0])
            text = json.dumps({**hello, "is_output": is_output})
            connection.sendall(text.encode().ljust(_HELLO_BYTES))
            return connection

        self._output, self._control = connect(is_output=True), connect(is_output=False)
        self._received = self._control.makefile("r", encoding="utf-8")

    def send(self, line: str) -> None:
        """Sends a line to show; does nothing if the driver is gone."""
        with contextlib.suppress(OSError):
            _send(self._output, line)

    def addresses(self) -> dict[str, list[str]]:
        """Waits for the addresses of all processes, by job.

        Raises:
          ValueError: the driver refused this one, and why.
        """
        answer = json.loads(self._received.readline() or '{"refused": "the driver is gone"}')
        if "refused" in answer:
            raise ValueError(answer["refused"])
        return answer

    def requests(self) -> Iterator[str]:
        """Yields the driver's requests."""
        with contextlib.suppress(OSError, ValueError):
            yield from map(str.strip, self._received)

    def close(self) -> None:
        """Ends the connections, also for a thread that waits for requests."""
        for connection in (self._output, self._control):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


@contextlib.contextmanager
def _running(placement: Placement, process: ProcessId, address: str) -> Iterator[None]:
    placement.enter(process, address)
    try:
        yield
    finally:
        placement.leave(process, address)


def _send(connection: ssl.SSLSocket, line: str) -> None:
    connection.sendall(f"{line}\n".encode())


def _ask_to_stop(connection: ssl.SSLSocket) -> None:
    with contextlib.suppress(OSError):
        _send(connection, "stop")


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")
