"""The streams of a ps: it admits workers, and a pool of threads serves their channels."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from functools import partial

from terngrad.cluster.addresses import name_of, split_address
from terngrad.connect import listener
from terngrad.connect.acceptor import AnySocket
from terngrad.connect.channel import Channel, KeepAlive
from terngrad.connect.config import ConnectConfig
from terngrad.connect.introduction import COORDINATION, EXCHANGE, AdmissionError, Hello
from terngrad.connect.listener import MAX_WAITING, Listener
from terngrad.connect.log_limiter import LogLimiter

_MAX_OPEN_FILES = 1 << 16
_OTHER_FILES = 64  # for snapshots, logs, event files and threads that start later
GRACE_SECS = 5.0  # for workers to learn the outcome and leave, perhaps after they reconnect
_LEAVE_SECS = 2.0  # for streams to end by themselves
_END_SECS = 2.0  # for the threads of those that did not
_SPARE_THREADS = 16  # for workers that reconnect before their last streams have ended


def raise_open_files_limit() -> None:
    """Raises the limit of open files as far as this process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # a container may forbid it
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def max_connections(wanted: int, needed: int, others: int = 0) -> int:
    """Returns how many connections a server may hold, so that this process never lacks files.

    Args:
      wanted: number without such a limit.
      needed: number below which the server is of no use.
      others: further connections that this process needs.

    Raises:
      ValueError: so many do not fit; the message names the limit.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    limit = min(wanted, soft - _OTHER_FILES - others - _open_files())
    if limit < needed:
        least = soft + needed - limit
        raise ValueError(
            f"the limit of open files (ulimit -n) is {soft}; allowed is {least} and more"
        )
    return limit


def _open_files() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:  # not on Linux
        return 128


# Opens a worker's channel; returns functions that threads of the ps then run. Must not block.
# Raises AdmissionError to refuse the worker.
OpenStream = Callable[[int, Channel], Sequence[Callable[[], object]]]


class Streams:
    """Admits the workers of a training to a ps."""

    def __init__(
        self,
        config: ConnectConfig,
        purposes: Mapping[str, OpenStream],
        log: LogLimiter,
        *,
        longest: int,
        threads: int,
        rules: str = "",
    ) -> None:
        """Does not listen yet.

        Args:
          config: of this ps; workers must have the same hosts and secret.
          purposes: opens a stream, by the purpose of the connection.
          log: gets lines about callers.
          longest: most bytes of a message.
          threads: number of threads that a worker's streams need at a time.
          rules: how steps are made, which workers must have, too; "" accepts any.

        Raises:
          ValueError: this process may not open as many files, or start as many threads, as the
            workers need.
        """
        self._config, self._worker_hosts = config, list(config.worker_hosts)
        self._purposes, self._log, self._longest, self._rules = purposes, log, longest, rules
        workers = len(self._worker_hosts)
        streams = 2 * len(purposes) * workers  # a worker may reconnect before its last stream ends
        self._max_connections = max_connections(MAX_WAITING + workers, workers, streams)
        self._pool = _started_pool(threads * workers + _SPARE_THREADS)
        self._running: set[futures.Future] = set()
        self._addresses: weakref.WeakKeyDictionary[Channel, str] = weakref.WeakKeyDictionary()
        self._alive: KeepAlive | None = None
        self._listener: Listener | None = None
        self._is_ending = False

    def start(self, address: str) -> int:
        """Listens at "host:port"; returns the port.

        Raises:
          PortError: the port is taken.
        """
        listening = self._config.listen(*split_address(address), self._max_connections)
        port = listening.getsockname()[1]
        self._alive = KeepAlive()
        purposes = {name: partial(self._open, opened) for name, opened in self._purposes.items()}
        self._listener = Listener(
            listening,
            self._config,
            purposes,
            self._check,
            self._log,
            max_connections=self._max_connections - len(self._worker_hosts),
        )
        self._listener.start()
        return port

    def close(self) -> None:
        """Ends all streams, after a moment in which they may end by themselves."""
        if self._listener:
            self._listener.close()
            deadline = time.monotonic() + _LEAVE_SECS
            while not self._alive.is_idle and time.monotonic() < deadline:
                time.sleep(0.01)
            self._is_ending = True
            self._alive.cut()
            self._alive.stop()
            futures.wait([*self._running], _END_SECS)
        self._pool.shutdown(wait=False)

    def complain(self, channel: Channel, why: str) -> str:
        """Logs what is wrong with a stream; returns the text without unprintable characters."""
        return listener.complain(self._log, self._addresses.get(channel, "a worker"), why)

    def refuse_second(self, worker: int) -> AdmissionError:
        """Returns the error for a worker's second stream; the first may have ended unnoticed."""
        name = name_of(worker, self._worker_hosts)
        return AdmissionError(f"{name} has already joined", again=True)

    def _open(
        self, open_stream: OpenStream, hello: Hello, connection: AnySocket, address: str
    ) -> Callable[[], object]:
        """Opens the stream of an admitted connection; see `listener.Open`."""
        channel = Channel(connection, self._longest, self._config.timeout_secs, hello.timeout_secs)
        try:
            tasks = open_stream(hello.worker, channel)
        except AdmissionError:
            channel.release()
            raise
        self._addresses[channel] = address

        def serve() -> None:
            self._alive.add(channel)
            if self._is_ending:  # else its threads would keep this process
                channel.cut()
            for task in tasks:
                try:
                    running = self._pool.submit(task)
                except RuntimeError:  # this ps has ended meanwhile
                    channel.cut()
                    return
                self._running.add(running)
                running.add_done_callback(self._running.discard)

        return serve

    def _check(self, hello: Hello) -> None:
        """Raises AdmissionError if a worker does not belong to this ps."""
        for name, own in (("ps", list(self._config.ps_hosts)), ("worker", self._worker_hosts)):
            theirs = list(hello.ps_hosts if name == "ps" else hello.worker_hosts)
            if theirs != own:
                why = f"its {name} hosts are {theirs}; this ps has {own}"
                raise AdmissionError(why, _differ(f"{name} hosts"))
        if hello.callee != (ps := self._config.rank):
            raise AdmissionError(f"it wants to join ps {hello.callee}; this is ps {ps}")
        if hello.purpose not in self._purposes:
            if hello.purpose == COORDINATION and EXCHANGE in self._purposes:
                raise AdmissionError(f"only ps 0 coordinates; this is ps {ps}")
            text = "was started with another --cross_replica_sync, or asynchronous, than this"
            raise AdmissionError(f"it {text} worker", fault=f"it {text} ps")
        if self._rules and hello.rules not in ("", self._rules):
            why = f"its flags are {hello.rules}; this ps has {self._rules}"
            raise AdmissionError(why, _differ("flags"))
        if hello.worker >= (workers := len(self._worker_hosts)):
            allowed = f"allowed are 0 to {workers - 1}"
            raise AdmissionError(f"its worker index is {hello.worker}; {allowed}")


def _differ(what: str) -> str:
    return f"its {what} differ from those of this ps, whose log says how"


def _started_pool(threads: int) -> futures.ThreadPoolExecutor:
    """Returns a pool that starts no thread later: a stream would wait for it, unserved.

    Raises:
      ValueError: this process may not start so many.
    """
    pool = futures.ThreadPoolExecutor(threads)
    all_run = threading.Barrier(threads)
    try:
        for _ in range(threads):  # each waits, so that the next needs another thread
            pool.submit(all_run.wait)
    except RuntimeError as error:
        all_run.abort()
        pool.shutdown()
        why = f"{error} (ulimit -u, or pids.max of a container)"
        raise ValueError(f"a ps needs {threads} threads for its workers' streams: {why}") from None
    return pool
