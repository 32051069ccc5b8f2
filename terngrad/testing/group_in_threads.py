"""A group whose workers are threads of one process, for what exchanges few and small values."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from terngrad.cluster.channel import MembershipError
from terngrad.cluster.membership import difference
from terngrad.library.group import Group

_MOST_SECS = 300.0  # a machine may be loaded


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
    barrier, values = threading.Barrier(size, timeout=_MOST_SECS), [None] * size

    def worker(rank: int) -> Any:
        try:
            return work(InThreads(rank, barrier, values))
        except Exception as error:
            return error

    with concurrent.futures.ThreadPoolExecutor(size) as pool:
        return list(pool.map(worker, range(size)))
