"""Runs trials as tasks of Spark's executors.

A task connects to this process and hands the connection to the module `trial` as its two pipes. So
what a trial tells arrives at once, and a trial ends with its sweep wherever it runs. A secret that
travels with the task tells its connection from others.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from inception.on_spark import session
from inception.sweeping import messages
from inception.sweeping.messages import End, Evaluation, Order, Outcome
from terngrad.connect.acceptor import Acceptor, fixed
from terngrad.launcher.hosts import WORKSPACE
from terngrad.spark.jobs import reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_SECS = 0.5
_HELLO_SECS = 10.0
_MOST_PENDING = 64  # connections at a time that have not shown the secret
_SETTINGS = {"spark.task.maxFailures": "1"}  # the sweep itself tries lost trials again, elsewhere


def open_session(master: str, workspace: str = "") -> SparkSession:
    """Connects to a Spark master for a sweep; see `session.open_session`."""
    return session.open_session(master, "inception.sweep", workspace, _SETTINGS)


class SparkPlace:
    """One of the trials that Spark runs at once. See `places.Place`."""

    slot, slots = 0, 1  # Spark gives an executor its cores

    def __init__(self, session: SparkSession, number: int, workspace: str) -> None:
        """Takes the session, a number for messages, and the repository's folder on executors."""
        self.label = f"Spark task {number}"
        self._context = session.sparkContext
        self._workspace = workspace or WORKSPACE

    @contextlib.contextmanager
    def start(self, order: Order) -> Iterator[_SocketChannel]:
        """Starts a trial, which ends with the block."""
        secret = secrets.token_hex()
        host = self._context.getConf().get("spark.driver.host")
        server = socket.create_server(("", 0))
        task = _Task(host, server.getsockname()[1], secret, self._workspace)
        job = _Job(self._context, task)
        channel = _SocketChannel(server, secret, job, order, self.label)
        try:
            yield channel
        finally:
            channel.stop()
            job.join()


class _Task:
    """What runs on an executor."""

    def __init__(self, host: str, port: int, secret: str, workspace: str) -> None:
        self._address, self._secret, self._workspace = (host, port), secret, workspace

    def __call__(self, items: Iterator[int]) -> Iterator[int]:
        list(items)
        environment = os.environ | {"PYTHONPATH": self._workspace}
        with socket.create_connection(self._address) as connection:
            connection.sendall(self._secret.encode())
            done = subprocess.run(
                [sys.executable, "-m", "inception.sweeping.trial"],
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


class _SocketChannel:
    """See `places.Channel`."""

    def __init__(
        self, server: socket.socket, secret: str, job: _Job, order: Order, label: str
    ) -> None:
        self._secret, self._job = secret.encode(), job
        self._order, self._label = order, label
        self._stopped, self._connected = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._acceptor = Acceptor(
            server,
            fixed(len(secret), self._take),
            print,
            most=_MOST_PENDING,
            timeout_secs=_HELLO_SECS,
        )
        self._acceptor.start()

    def events(self) -> Iterator[Evaluation | End]:
        connection = self._accept()
        self._acceptor.close()
        if connection:
            with connection, connection.makefile() as lines, contextlib.suppress(OSError):
                connection.sendall(messages.write(self._order).encode())
                for line in lines:
                    event = messages.read_event(line)
                    yield event
                    if isinstance(event, End):
                        return
        self._job.join()
        if self._stopped.is_set():
            yield End(Outcome.STOPPED)
        else:
            yield End(Outcome.LOST, f"{self._label}: {self._job.error or 'no answer'}")

    def _accept(self) -> socket.socket | None:
        """Waits for the connection of the task, which may have to wait for a free core."""
        while self._job.is_alive() and not self._stopped.is_set():
            if self._connected.wait(_LOOK_SECS):
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
    """Lets a connection fail within a minute if the other machine is lost without a word."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, option):  # Linux has all three
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
