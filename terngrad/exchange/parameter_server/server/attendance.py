"""Which workers' streams a ps has, and whether the run is over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from terngrad.cluster.channel import name_of

_BLINK_SECS = 1.0  # in which streams that broke are open again


class Attendance:
    """Workers by what became of them; any thread may call."""

    def __init__(
        self,
        worker_hosts: Sequence[str],
        timeout_secs: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nobody has come yet; after `timeout_secs` without anybody none will come back."""
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
        """Workers that are here."""
        with self._lock:
            return len(self._present)

    @property
    def outcome(self) -> str | None:
        """None while the run goes on, "" when it is done, else why it ended."""
        with self._lock:
            empty_secs = 0.0 if self._present else self._clock() - self._empty_since
            if self._some_are_done or self._failure:
                over = "" if self._some_are_done else self._failure
                # A worker that hangs does not know that the others are done.
                alone_secs = self._clock() - self._done_at if self._some_are_done else 0.0
                is_over = empty_secs >= _BLINK_SECS or alone_secs >= self._timeout_secs
                return over if is_over else None
            late = empty_secs >= self._timeout_secs
            return self._last_loss if self._last_loss and late else None

    def come(self, worker: int) -> bool:
        """Notes that a worker has come; False if it is here already."""
        with self._lock:
            if worker in self._present:
                return False
            self._present.add(worker)
            return True

    def leave(self, worker: int, *, is_done: bool, why: str) -> None:
        """Notes that a worker has gone.

        Args:
          worker: its index.
          is_done: it said that it ends.
          why: what it said was wrong, or how its stream ended.
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
                self._failure = ""  # of one that failed, but not the training with it
                self._last_loss = f"{name_of(worker, self._hosts)} {why}"
