"""Which workers have a stream to a ps, and whether the run is over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from terngrad.cluster.addresses import name_of

_RECONNECT_SECS = 1.0  # in which a worker replaces a broken stream


class WorkerRegistry:
    """The workers that are connected, and how the others left; any thread may call."""

    def __init__(
        self,
        worker_hosts: Sequence[str],
        timeout_secs: float,
        clock: Callable[[], float],
    ) -> None:
        """Starts without workers.

        Args:
          worker_hosts: host of each worker, for messages.
          timeout_secs: time without any worker after which the run is over.
          clock: returns seconds.
        """
        self._hosts = worker_hosts
        self._timeout_secs = timeout_secs
        self._clock = clock
        self._present: set[int] = set()
        self._some_are_done = False
        self._done_at = 0.0
        self._failure = ""
        self._last_loss = ""
        self._empty_since = clock()
        self._lock = threading.Lock()

    @property
    def present(self) -> int:
        """Number of connected workers."""
        with self._lock:
            return len(self._present)

    @property
    def some_are_done(self) -> bool:
        """Whether a worker has said that it is done."""
        with self._lock:
            return self._some_are_done

    @property
    def outcome(self) -> str | None:
        """None while the run continues, "" when it is done, else why it failed."""
        with self._lock:
            empty_secs = 0.0 if self._present else self._clock() - self._empty_since
            if self._some_are_done or self._failure:
                over = "" if self._some_are_done else self._failure
                # A worker that hangs cannot say that it is done.
                alone_secs = self._clock() - self._done_at if self._some_are_done else 0.0
                is_over = empty_secs >= _RECONNECT_SECS or alone_secs >= self._timeout_secs
                return over if is_over else None
            late = empty_secs >= self._timeout_secs
            return self._last_loss if self._last_loss and late else None

    def connect(self, worker: int) -> bool:
        """Notes that a worker has connected; False if it already was."""
        with self._lock:
            if worker in self._present:
                return False
            self._present.add(worker)
            return True

    def disconnect(self, worker: int, *, is_done: bool, why: str) -> None:
        """Notes that a worker's stream has ended.

        Args:
          worker: index of the worker.
          is_done: whether it said goodbye.
          why: the error in its goodbye, or how its stream ended.
        """
        with self._lock:
            self._present.discard(worker)
            self._empty_since = self._clock()
            if is_done and why:
                self._failure = self._failure or why
            elif is_done:
                self._some_are_done = True
                self._done_at = self._clock()
            else:
                self._failure = ""  # a worker failed earlier, but the training continued
                self._last_loss = f"{name_of(worker, self._hosts)} {why}"
