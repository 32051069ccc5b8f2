"""Calls that a test makes at the same time, and workers that are threads of a test."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from terngrad.cluster import admission
from terngrad.cluster.addresses import listen, split_address
from terngrad.cluster.errors import MembershipError
from terngrad.cluster.membership import difference
from terngrad.connect.config import ConnectConfig
from terngrad.connect.tls import TlsContexts
from terngrad.library.group import Group
from terngrad.testing.limits import HANG_SECS

TIMEOUT = HANG_SECS
_MAX_SECS = 300.0  # a machine may be loaded


def in_threads(*calls: Callable[[], object]) -> list[object]:
    """Runs each call in its own thread; returns the result or the exception of each."""
    results: list[object] = [None] * len(calls)

    def run(i: int) -> None:
        try:
            results[i] = calls[i]()
        except BaseException as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECS)
        assert not thread.is_alive(), f"a call has not returned within {HANG_SECS:g} s"
    return results


def hosts_of(count: int) -> list[str]:
    """Returns the hosts of `count` workers; no process listens there."""
    return [f"host{i}:2222" for i in range(count)]


def joining(
    rank: int,
    address: str,
    hosts: Sequence[str],
    timeout_secs: float,
    encryption: TlsContexts | None = None,
    secret: bytes = b"",
) -> Callable[[], Mapping[int, object]]:
    """Returns a call in which a process joins; the chief listens already, so all can reach it."""
    config = ConnectConfig(hosts, rank, (), timeout_secs, encryption, secret)
    if rank == 0:
        listener = listen(*split_address(address))
        return lambda: admission.receive_all(config, listener)
    return lambda: admission.join(config, address)


def received(
    call: Callable[[], object],
    address: str,
    hosts: Sequence[str],
    encryption: TlsContexts | None = None,
    secret: bytes = b"",
    fault: str = "",
) -> tuple[object, str]:
    """Receives processes while a call that joins lasts, and until the chief notes a fault, if any.

    Returns:
      What the call returns or raises, and what the chief says then after a time-out of 5 s.
    """
    listener = listen(*split_address(address))
    config = ConnectConfig(hosts, 0, tls=encryption, secret=secret)
    with admission.ChiefListener(config, listener) as chief:
        result, deadline = in_threads(call)[0], time.monotonic() + TIMEOUT
        while fault not in (said := chief.complaint(5.0)) and time.monotonic() < deadline:
            time.sleep(0.01)
        return result, said


def assert_met(results: Sequence[Mapping[int, object]]) -> None:
    """Asserts that the chief is connected to each other process, and each of these to the chief.

    Args:
      results: connections of each process, by rank of the other process.
    """
    assert all(isinstance(r, dict) for r in results), results
    assert sorted(results[0]) == list(range(1, len(results)))
    for result in results[1:]:
        assert sorted(result) == [0]


class InThreads(Group):
    """A worker of such a group: it can compare and gather, but makes no steps."""

    def __init__(self, rank: int, barrier: threading.Barrier, values: list) -> None:
        """Exchanges by a list with a place for each worker."""
        super().__init__(rank, len(values))
        self._barrier, self._values = barrier, values

    def check_open(self) -> None:
        """Is always open."""

    def all_gather_object(self, value: Any, *, what: str = "") -> list[Any]:
        """Returns the values of all workers."""
        self._values[self.rank] = value
        self._barrier.wait()
        found = list(self._values)
        self._barrier.wait()
        return found

    def all_gather(self, array: np.ndarray, *, what: str = "") -> np.ndarray:
        """Returns the arrays of all workers."""
        array = np.asarray(array)
        self.agree({"the array": f"{array.dtype.name}{list(array.shape)}"}, what)
        return np.stack(self.all_gather_object(array))

    def agree(self, configuration: Mapping[str, str], what: str) -> None:
        """Raises MembershipError on all workers if their configurations differ."""
        first, *others = self.all_gather_object(configuration)
        for rank, other in enumerate(others, 1):
            if text := difference(first, other, "worker 0", f"worker {rank}"):
                raise MembershipError(text)


def on_all(size: int, work: Callable[[InThreads], Any]) -> list[Any]:
    """Returns what a function returns, or raises, for each of `size` workers."""
    barrier, values = threading.Barrier(size, timeout=_MAX_SECS), [None] * size

    def worker(rank: int) -> Any:
        try:
            return work(InThreads(rank, barrier, values))
        except Exception as error:
            return error

    with concurrent.futures.ThreadPoolExecutor(size) as pool:
        return list(pool.map(worker, range(size)))
