"""A Spark task that runs a process of a cluster, or an inference.

The task starts a process for the user's function, passes rows to it, and sends its output to the
driver.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

from terngrad.cluster import interfaces
from terngrad.cluster.addresses import host_and_port, unreserved_ports
from terngrad.spark.certificates import Certificates
from terngrad.spark.context import Context
from terngrad.spark.driver import DriverConnection, ProcessId
from terngrad.spark.feed import write_rows

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA = "ended boolean"  # of the rows that a task yields: none


@dataclasses.dataclass(frozen=True)
class ProcessTask:
    """What a task of Spark does; Spark sends it to executors.

    Attributes:
      work: pickled function and arguments.
      job: "worker", "ps" or "inference".
      driver: address of the driver.
      certificates: of the run.
      gathers_in_barrier: whether the processes exchange their addresses in a barrier stage, and not
        through the driver.
      epochs: how often the process gets its rows; 0 = never.
      num_rows: rows of all workers in an epoch; None if Spark feeds none.
      schema: of the results of an inference.
    """

    work: bytes
    job: str
    driver: tuple[str, int]
    certificates: Certificates
    gathers_in_barrier: bool = False
    epochs: int = 0
    num_rows: int | None = None
    schema: pa.Schema | None = None

    def __call__(self, batches: Iterable) -> Iterator:
        """Runs the process to its end; yields the results of an inference."""
        from pyspark import TaskContext

        own = ProcessId(self.job, TaskContext.get().partitionId())
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(_temporary_folder())
            connection, context = self._connect(own)
            stack.callback(connection.close)
            tls = self.certificates.store(folder)
            context = dataclasses.replace(context, tls=tls, folder=folder)
            process = _Process(self.work, context, connection, self.schema)
            stack.callback(process.kill)
            yield from process.run(batches if self.epochs else (), self.epochs)

    def _connect(self, own: ProcessId) -> tuple[DriverConnection, Context]:
        """Connects to the driver; returns the connection, and this process' place."""
        if own.job == "inference":
            return DriverConnection(self.driver, self.certificates, own), Context(*own)
        port, control_port = unreserved_ports(2)
        address = host_and_port(interfaces.published(self.driver[0]), port)
        needs_addresses = not self.gathers_in_barrier
        connection = DriverConnection(
            self.driver, self.certificates, own, address, needs_addresses=needs_addresses
        )
        if self.gathers_in_barrier:
            addresses, control_port = _gather(address, control_port)
        else:
            addresses = connection.addresses()
        workers, ps = (tuple(addresses[job]) for job in ("worker", "ps"))
        return connection, Context(*own, workers, ps, control_port, num_rows=self.num_rows)


@contextlib.contextmanager
def _temporary_folder() -> Iterator[str]:
    """Yields a private folder for a task; deletes it at the end, and those of killed tasks first.

    A task holds a lock of its folder, which ends with the task's Python process, however that ends.
    """
    prefix = f"terngrad_spark_{socket.gethostname()}_"  # another machine's lock may not be seen
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError), _locked(folder):
            shutil.rmtree(folder)
    made = Path(tempfile.mkdtemp(prefix=f"new_{prefix}"))
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # where a file system has no locks, no other deletes it
            stack.enter_context(_locked(made))
        # Only now it has a name that others look for.
        folder = made.rename(made.with_name(made.name.removeprefix("new_")))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield str(folder)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds the lock of a folder.

    Raises:
      OSError: another process holds it, or another user owns the folder.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_uid != os.getuid():
            raise PermissionError(f"{folder} belongs to another user")
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _gather(own: str, control: int) -> tuple[Mapping[str, list[str]], int]:
    """Returns the workers' addresses, and the control port of the first."""
    from pyspark import BarrierTaskContext

    gathered = BarrierTaskContext.get().allGather(json.dumps([own, control]))
    given = [json.loads(each) for each in gathered]
    return {"worker": [address for address, _ in given], "ps": []}, given[0][1]


class _Process:
    """The process of a user's function."""

    def __init__(
        self, work: bytes, context: Context, connection: DriverConnection, schema: pa.Schema | None
    ) -> None:
        """Starts it. One with a schema gets rows and gives results of that schema."""
        from pyspark import cloudpickle

        self._connection = connection
        self._last = ""
        self._is_asked = False  # to end
        # The other end closes with this process, however that ends.
        task_end, self._task_end = os.pipe()
        infers = schema is not None
        has_feed = infers or context.num_rows is not None
        rows, self._rows = os.pipe() if has_feed else (-1, -1)
        self._results, results = os.pipe() if infers else (-1, -1)
        theirs = [end for end in (task_end, rows, results) if end >= 0]
        ends = map(str, (task_end, rows, results))
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-m", "terngrad.spark.process", *ends],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=theirs,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        for end in theirs:
            os.close(end)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(work + cloudpickle.dumps(context) + cloudpickle.dumps(schema))
            self._process.stdin.close()

    def run(self, batches: Iterable, epochs: int) -> Iterator:
        """Feeds the process and yields its results, until it has ended.

        Args:
          batches: rows.
          epochs: how often it gets them.

        Raises:
          RuntimeError: it failed, with its last line; or it was asked to end before it had given a
            result for each row.
          Exception: the rows failed.
        """
        forwarding = threading.Thread(target=self._forward_output)
        forwarding.start()
        threading.Thread(target=self._handle_requests, daemon=True).start()
        if self._results >= 0:
            yield from self._inferred(batches)
        elif self._rows >= 0:
            write_rows(batches, os.fdopen(self._rows, "wb"), epochs)
        status = self._process.wait()
        forwarding.join()
        if status and (self._results >= 0 or not self._is_asked):
            how = f"killed by {signal.Signals(-status).name}" if status < 0 else f"status {status}"
            raise RuntimeError(f"{how}: {self._last}" if self._last else how)

    def _inferred(self, batches: Iterable) -> Iterator:
        """Yields the results; the rows are written meanwhile."""
        import pyarrow as pa

        written = Future[int]()
        threading.Thread(target=self._write_rows, args=(batches, written)).start()
        rows = 0
        # If the process ends within a batch, its status says more.
        with os.fdopen(self._results, "rb") as results, contextlib.suppress(pa.ArrowException):
            if results.peek(1):
                with pa.ipc.open_stream(results) as found:
                    for batch in found:
                        rows += batch.num_rows
                        yield batch
        wanted = written.result()
        status = self._process.wait()
        if self._is_asked and (status or rows != wanted):
            raise RuntimeError("the cluster was stopped")
        if status == 0 and rows != wanted:
            raise RuntimeError(f"{wanted} rows gave {rows} results; each needs one")

    def _write_rows(self, batches: Iterable, written: Future[int]) -> None:
        """Writes the rows for an inference. If they fail, the process ends, and then the task."""
        with os.fdopen(self._rows, "wb") as pipe:
            try:
                written.set_result(write_rows(batches, pipe, 1))
            except BaseException as error:
                # Before the pipe closes, which the process would take for the end of the rows.
                self._process.kill()
                self._process.wait()
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
                written.set_exception(error)

    def _forward_output(self) -> None:
        for line in self._process.stdout:
            text = line.decode(errors="replace").rstrip()
            self._last = text or self._last
            self._connection.send(text)

    def _handle_requests(self) -> None:
        for request in self._connection.requests():
            if request == "stop":
                self._is_asked = True
                self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the process if it still runs."""
        os.close(self._task_end)
        self._process.kill()
        self._process.wait()
