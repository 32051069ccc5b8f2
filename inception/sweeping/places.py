"""Where trials run: shares of this machine or of hosts reached over ssh, and tasks of Spark."""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING, Protocol

from inception.on_spark import session
from inception.sweeping import messages
from inception.sweeping.messages import Evaluation, Outcome, TrialEnd, TrialSpec
from terngrad.connect.acceptor import Acceptor, greeting_of_size
from terngrad.launcher import hosts
from terngrad.launcher.hosts import WORKSPACE
from terngrad.spark.jobs import reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_TRIAL = "inception.sweeping.trial"
_CHECK_SECS = 60

# Of trials on Spark.
_POLL_SECS = 0.5
_HELLO_SECS = 10.0
_MAX_PENDING = 64  # connections at a time that have not sent the secret
_SETTINGS = {"spark.task.maxFailures": "1"}  # the sweep itself retries lost trials elsewhere


class TrialConnection(Protocol):
    """Connects a sweep with a running trial."""

    def events(self) -> Iterator[Evaluation | TrialEnd]:
        """Yields the events of the trial; the last is always its end."""

    def stop(self) -> None:
        """Lets the training save and end."""


class Place(Protocol):
    """A place for one trial at a time.

    Attributes:
      label: its name for messages.
      slot: which share of its machine it is.
      slots: number of shares of its machine.
    """

    label: str
    slot: int
    slots: int

    def start(self, spec: TrialSpec) -> contextlib.AbstractContextManager[TrialConnection]:
        """Starts a trial, which ends with the block."""


class ProcessPlace:
    """A share of a machine on which a command runs the module `trial`."""

    def __init__(self, label: str, command: Sequence[str], slot: int, slots: int) -> None:
        """See `Place`; `command` runs the module there."""
        self.label, self.slot, self.slots = label, slot, slots
        self._command = command

    @contextlib.contextmanager
    def start(self, spec: TrialSpec) -> Iterator[TrialConnection]:
        """Starts a trial, which ends with the block."""
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,  # Ctrl-C reaches the sweep alone
            )
            with process:
                connection = _ProcessConnection(process, errors, self.label)
                connection.send(messages.write(spec))
                try:
                    yield connection
                finally:
                    connection.stop()

    def check(self) -> None:
        """Raises ValueError if trials cannot run here."""
        try:
            done = subprocess.run(
                self._command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_CHECK_SECS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ValueError(f"{self.label} does not answer within {_CHECK_SECS} s") from None
        if done.returncode:
            raise ValueError(
                f"{self.label} cannot run trials: {_last(done.stderr, done.returncode)}"
            )


class _ProcessConnection:
    def __init__(self, process: subprocess.Popen, errors: IO[str], label: str):
        self._process, self._errors, self._label = process, errors, label

    def send(self, text: str) -> None:
        with contextlib.suppress(OSError):  # it has ended: `events` says why
            self._process.stdin.write(text)
            self._process.stdin.flush()

    def events(self) -> Iterator[Evaluation | TrialEnd]:
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):  # start-up files of the host's shell may print
                event = messages.read_event(line)
                yield event
                if isinstance(event, TrialEnd):
                    return
        code = self._process.wait()
        self._errors.seek(0)
        yield TrialEnd(Outcome.LOST, f"{self._label}: {_last(self._errors.read(), code)}")

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self._process.stdin.close()


def _last(text: str, code: int) -> str:
    return hosts.last_line(text, f"the trial's process ended with status {code}")


def on_this_machine(jobs: int) -> list[ProcessPlace]:
    """Returns the places of this machine."""
    command = [sys.executable, "-m", _TRIAL]
    return [ProcessPlace(f"job {i}", command, i, jobs) for i in range(jobs)]


def on_hosts(
    names: Sequence[str], jobs: int, workspace: str, ssh_config: str
) -> list[ProcessPlace]:
    """Returns the places of some hosts.

    Args:
      names: of the hosts for ssh, which must not ask for a password.
      jobs: number of trials at once on each.
      workspace: folder of the repository there.
      ssh_config: ssh's configuration file; "" = the user's own.
    """
    ssh = ["ssh", "-F", ssh_config] if ssh_config else ["ssh"]
    line = hosts.module_line(workspace or hosts.WORKSPACE, _TRIAL)
    return [
        ProcessPlace(host, hosts.ssh_command(host, line, ssh), i, jobs)
        for i in range(jobs)
        for host in names
    ]


def open_session(master: str, workspace: str = "") -> SparkSession:
    """Connects to a Spark master for a sweep; see `session.open_session`."""
    return session.open_session(master, "inception.sweep", workspace, _SETTINGS)


class SparkPlace:
    """One of the trials that Spark runs at once. See `Place`."""

    slot, slots = 0, 1  # Spark gives an executor its cores

    def __init__(self, session: SparkSession, number: int, workspace: str) -> None:
        """Takes the session, a number for messages, and the repository's folder on executors."""
        self.label = f"Spark task {number}"
        self._context = session.sparkContext
        self._workspace = workspace or WORKSPACE

    @contextlib.contextmanager
    def start(self, spec: TrialSpec) -> Iterator[_SocketConnection]:
        """Starts a trial, which ends with the block."""
        secret = secrets.token_hex()
        host = self._context.getConf().get("spark.driver.host")
        server = socket.create_server(("", 0))
        task = _Task(host, server.getsockname()[1], secret, self._workspace)
        job = _Job(self._context, task)
        connection = _SocketConnection(server, secret, job, spec, self.label)
        try:
            yield connection
        finally:
            connection.stop()
            job.join()


class _Task:
    """The function of an executor: it runs a trial."""

    def __init__(self, host: str, port: int, secret: str, workspace: str) -> None:
        self._address, self._secret, self._workspace = (host, port), secret, workspace

    def __call__(self, items: Iterator[int]) -> Iterator[int]:
        list(items)
        environment = os.environ | {"PYTHONPATH": self._workspace}
        with socket.create_connection(self._address) as connection:
            connection.sendall(self._secret.encode())
            done = subprocess.run(
                [sys.executable, "-m", _TRIAL],
                stdin=connection,
                stdout=connection,
                stderr=subprocess.PIPE,
                cwd=self._workspace,
                env=environment,
                check=False,
            )
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            raise RuntimeError(lines[-1] if lines else f"status {done.returncode}")
        yield 0


class _Job(threading.Thread):
    """A Spark job of one task.

    Attributes:
      error: why it failed.
    """

    def __init__(self, context: object, task: _Task) -> None:
        super().__init__()
        self.error = ""
        self._context, self._task = context, task
        self.start()

    def run(self) -> None:
        try:
            self._context.parallelize([0], 1).mapPartitions(self._task).collect()
        except Exception as error:  # of the task, or of Spark
            self.error = reason(error)


class _SocketConnection:
    """See `TrialConnection`."""

    def __init__(
        self, server: socket.socket, secret: str, job: _Job, spec: TrialSpec, label: str
    ) -> None:
        self._secret, self._job = secret.encode(), job
        self._spec, self._label = spec, label
        self._stopped, self._connected = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._acceptor = Acceptor(
            server,
            greeting_of_size(len(secret), self._take),
            print,
            max_connections=_MAX_PENDING,
            timeout_secs=_HELLO_SECS,
        )
        self._acceptor.start()

    def events(self) -> Iterator[Evaluation | TrialEnd]:
        connection = self._accept()
        self._acceptor.close()
        if connection:
            with connection, connection.makefile() as lines, contextlib.suppress(OSError):
                connection.sendall(messages.write(self._spec).encode())
                for line in lines:
                    event = messages.read_event(line)
                    yield event
                    if isinstance(event, TrialEnd):
                        return
        self._job.join()
        if self._stopped.is_set():
            yield TrialEnd(Outcome.STOPPED)
        else:
            yield TrialEnd(Outcome.LOST, f"{self._label}: {self._job.error or 'no answer'}")

    def _accept(self) -> socket.socket | None:
        """Waits for the connection of the task, which may have to wait for a free core."""
        while self._job.is_alive() and not self._stopped.is_set():
            if self._connected.wait(_POLL_SECS):
                return self._connection
        return None

    def _take(self, connection: socket.socket, secret: bytes) -> bool:
        """Notes the connection that begins with the secret, which is the task's."""
        with self._lock:
            if self._connection or not hmac.compare_digest(secret, self._secret):
                return False
            self._connection = connection
        connection.setblocking(True)
        _notice_loss(connection)
        self._connected.set()
        return True

    def stop(self) -> None:
        self._stopped.set()
        self._acceptor.close()
        with self._lock:
            if self._connection:
                with contextlib.suppress(OSError):
                    self._connection.shutdown(socket.SHUT_WR)


def _notice_loss(connection: socket.socket) -> None:
    """Lets a connection fail within a minute if the other machine is lost without closing it."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, option):  # Linux has all three
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
