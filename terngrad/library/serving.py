"""Runs a parameter server, synchronous or asynchronous, until its workers are done."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import numbers
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, NoReturn, Protocol

from terngrad import allocator
from terngrad.asynchronous.server import Server as AsynchronousServer
from terngrad.asynchronous.snapshots import SnapshotSettings
from terngrad.asynchronous.store import Store
from terngrad.cluster.addresses import split_address
from terngrad.cluster.errors import MembershipError, PortError
from terngrad.cluster.membership import LOST_STATUS
from terngrad.connect import streams
from terngrad.connect.calling import ps_name
from terngrad.connect.log_limiter import LogLimiter
from terngrad.exchange.parameter_server.server.arithmetic import PackedArithmetic
from terngrad.exchange.parameter_server.server.server import Server as SynchronousServer
from terngrad.files import FolderInUseError, lock_folder
from terngrad.library import rates
from terngrad.library.join_config import JoinConfig
from terngrad.ops.gradient_kernels import GradientKernels
from terngrad.training import runtime
from terngrad.training.schedules import Schedule
from terngrad.training.signals import install

_POLL_SECS = 1.0  # whether a report is due
_FORMER_SECS = 3.0  # for which the server of a worker that was killed may outlive it


@dataclasses.dataclass(frozen=True)
class Asynchronous:
    """How a parameter server holds the parameters of an asynchronous training.

    Raises ValueError for values that are not allowed.

    Attributes:
      read_schedule: returns the learning rate that worker 0 has written as text; raises ValueError,
        TypeError or KeyError if it cannot. None = that of `AsynchronousTraining`.
      folder: server i writes its snapshots to FOLDER/ps_i, and worker 0 a file to FOLDER that names
        the training, so that each goes on from there when it is started again; "" = nowhere.
      snapshot_steps: most updates that its death loses; 0 = it writes no snapshots.
      snapshot: a server that starts sets aside its snapshots of more updates than this, and goes on
        from the newest of the others; -1 = from the newest. Another value needs snapshots.
    """

    read_schedule: Callable[[str], Schedule] | None = None
    folder: str = ""
    snapshot_steps: int = 1000
    snapshot: int = -1

    def __post_init__(self) -> None:
        is_from = lambda least, value: isinstance(value, numbers.Integral) and value >= least
        read, folder = self.read_schedule, self.folder
        for name, is_right, allowed in (
            ("read_schedule", read is None or callable(read), "functions and None"),
            ("folder", isinstance(folder, (str, os.PathLike)), "paths and ''"),
            ("snapshot_steps", is_from(0, self.snapshot_steps), "integers from 0 on"),
            ("snapshot", is_from(-1, self.snapshot), "integers from -1 on"),
        ):
            if not is_right:
                value = getattr(self, name)
                raise ValueError(f"Asynchronous: {name} is {value!r}; allowed are {allowed}")
        if self.snapshot != -1 and not (folder and self.snapshot_steps):
            why = "allowed is -1 without snapshots, which need folder and snapshot_steps above 0"
            raise ValueError(f"Asynchronous: snapshot is {self.snapshot}; {why}")


class Report(Protocol):
    """The report of a program about its parameter server."""

    def beat(self) -> None:
        """Called often; reports if a report is due."""

    def report(self) -> None:
        """Reports now."""


def say(text: str) -> None:
    """Logs a line; a full disk or a closed pipe does not end the training."""
    with contextlib.suppress(OSError):
        print(f"{text}\n", end="", flush=True)  # at once: other threads say something, too


def start_at(server: SynchronousServer | AsynchronousServer, address: str, secs: float) -> None:
    """Starts a server; tries for some seconds where another process still has its port.

    Raises:
      PortError: the port is taken.
    """
    deadline = time.monotonic() + secs
    while True:
        try:
            server.start(address)
            return
        except PortError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.1)


def serve(
    config: JoinConfig,
    asynchronous: Asynchronous | None = None,
    make_report: Callable[[SynchronousServer | AsynchronousServer], Report] | None = None,
) -> None:
    """Serves until the workers need this server no more, or a signal arrives.

    Args:
      config: of this process, which is a parameter server.
      asynchronous: it holds the parameters; None = it adds gradients.
      make_report: called with the server before it serves; None = it reports nothing.

    Raises:
      MembershipError: a worker was lost.
      ValueError: something in the configuration is wrong, or its port is taken.
      SystemExit: with the signal's status, if it arrived while workers were connected.
    """
    config.check()
    streams.raise_open_files_limit()
    runtime.use_no_gpu()
    role, naming = config.role, config.naming
    chosen, own = runtime.kernels(), role.ps_hosts[role.task_id]
    if asynchronous:
        ps: _Ps = _AsynchronousPs(config, asynchronous, chosen.kernels)
    else:
        ps = _SynchronousPs(config, chosen.kernels)
    with stopped_by_signals(ps.server.stop) as signals:
        try:
            secs = _FORMER_SECS if config.has_own_servers else 0.0
            start_at(ps.server, own, secs)
        except PortError as error:
            if config.has_own_servers:  # the worker that started this process adds the rest
                raise ValueError(str(error)) from None
            raise naming.refuse("ps_hosts", role.ps_hosts, str(error)) from None
        who = "who have certificates" if config.tls else "anywhere"
        say(f"{ps.name} {ps.task} {'on this machine' if config.only_here else who}.")
        if not config.has_own_servers:  # else the worker that started this process logs it
            config.log_interface()
        say(f"Codes are {ps.use_of_kernels} by {chosen}.")
        report = make_report(ps.server) if make_report else None
        ps.wait(report.beat if report else lambda: None)
        if report:
            report.report()
        ps.close()
    ps.report_end(signals)


def serve_and_exit(config: JoinConfig, asynchronous: Asynchronous | None) -> NoReturn:
    """Serves, then ends this process: with `LOST_STATUS` if a worker was lost."""
    try:
        serve(config, asynchronous)
    except MembershipError as error:
        with contextlib.suppress(OSError):
            print(error, file=sys.stderr, flush=True)
        sys.exit(LOST_STATUS)
    sys.exit(0)


@contextlib.contextmanager
def stopped_by_signals(end: Callable[[], None]) -> Iterator[list[signal.Signals]]:
    """Calls `end` at SIGTERM or Ctrl-C, unless ignored; yields the received signals."""
    came: list[signal.Signals] = []

    def stop(number: int, frame) -> None:
        del frame
        came.append(signal.Signals(number))
        threading.Thread(target=end).start()  # this thread may hold the lock that `end` needs

    before = install(stop, (signal.SIGTERM, signal.SIGINT))
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Ps(abc.ABC):
    """A parameter server and its log lines.

    Attributes:
      name: its name in messages.
      server: the server itself.
      task: its task, in words, for its first log line.
      use_of_kernels: participle of what it does with codes, for its log.
    """

    name: str
    server: SynchronousServer | AsynchronousServer
    task: str
    use_of_kernels: str

    @abc.abstractmethod
    def wait(self, beat: Callable[[], None]) -> None:
        """Waits until no worker needs this server any more; calls `beat` regularly."""

    @abc.abstractmethod
    def close(self) -> None:
        """Ends all streams."""

    @abc.abstractmethod
    def report_end(self, signals: Sequence[signal.Signals]) -> None:
        """Prints the last line, after `close`, given the received signals; see `serve`."""


class _SynchronousPs(_Ps):
    """Adds what the workers push at each step."""

    use_of_kernels = "added"

    def __init__(self, config: JoinConfig, kernels: GradientKernels) -> None:
        role = config.role
        ps, hosts, workers = role.task_id, role.ps_hosts, role.worker_hosts
        here = [host for host in hosts if split_address(host)[0] == split_address(hosts[ps])[0]]
        self.name, self.task = ps_name(ps, hosts), f"waits for {len(workers)} workers"
        arithmetic = PackedArithmetic(kernels.packing)
        max_bytes = allocator.max_pushed_bytes() // len(here)
        self.server = SynchronousServer(config.connect, arithmetic, config.rules, say, max_bytes)
        self._outcome: str | None = None  # see `Server.wait`
        self._left = 0

    def wait(self, beat: Callable[[], None]) -> None:
        self._outcome = self.server.wait(beat)

    def close(self) -> None:
        self._left = self.server.registry.present
        self.server.close()

    def report_end(self, signals: Sequence[signal.Signals]) -> None:
        if self._outcome:
            raise MembershipError(f"{self.name} ends: {self._outcome}")
        if self._outcome is None and self._left:
            _leave(signals[0], f"{self.name} left {self._left} workers.")
        why = signals[0].name if self._outcome is None else "all workers are done"
        say(f"{self.name} ends: {why}.")


class _AsynchronousPs(_Ps):
    """Holds the parameters, and applies gradients as they arrive."""

    use_of_kernels = "read"

    def __init__(
        self, config: JoinConfig, asynchronous: Asynchronous, kernels: GradientKernels
    ) -> None:
        role = config.role
        ps, hosts, workers = role.task_id, role.ps_hosts, role.worker_hosts
        folder = os.path.join(asynchronous.folder, f"ps_{ps}") if asynchronous.folder else ""
        self.name = ps_name(ps, hosts)
        self.task = f"holds the parameters of {len(workers)} workers"
        steps = asynchronous.snapshot_steps if folder else 0
        self._lock = _hold_folder(config, folder) if steps else None
        log = LogLimiter(say)
        log_named = lambda text: log(f"{self.name}: {text}")
        snapshots = SnapshotSettings(folder, steps, asynchronous.snapshot)
        read = asynchronous.read_schedule or rates.read_rate
        try:
            store = Store(ps, len(hosts), workers, kernels, read, snapshots, log_named)
        except (LookupError, OSError) as error:
            why, value = f"in {folder} {error}", asynchronous.snapshot
            raise config.naming.refuse("asynchronous.snapshot", value, why) from None
        self.server = AsynchronousServer(config.connect, store, log)
        self._left = 0

    def wait(self, beat: Callable[[], None]) -> None:
        while not self.server.wait(_POLL_SECS):
            beat()

    def close(self) -> None:
        self._left = len(self.server.workers.present)
        self.server.close()
        if self._lock:
            self._lock.close()

    def report_end(self, signals: Sequence[signal.Signals]) -> None:
        if why := self.server.workers.failure:
            raise MembershipError(f"{self.name} ends: worker 0 failed: {why}")
        at = f"at step {self.server.store.version}"
        if signals and self._left:
            _leave(signals[0], f"{self.name} left {self._left} workers {at}.")
        why = signals[0].name if signals else self.server.workers.why_over
        say(f"{self.name} ends {at}: {why}.")


def _leave(why: signal.Signals, text: str) -> NoReturn:
    say(f"{why.name}: {text}")
    sys.exit(128 + why)


def _hold_folder(config: JoinConfig, folder: str) -> IO[str]:
    """Locks the folder of the snapshots, since another server would remove them."""
    refuse = config.naming.refuse
    try:
        os.makedirs(folder, exist_ok=True)
        return lock_folder(folder, "ps")
    except FolderInUseError as error:
        raise refuse("asynchronous.folder", folder, str(error)) from None
    except OSError as error:
        off = f"{config.naming.name('asynchronous.snapshot_steps')}=0 turns them off"
        why = f"snapshots cannot be written there ({error.strerror}); {off}"
        raise refuse("asynchronous.folder", folder, why) from None
