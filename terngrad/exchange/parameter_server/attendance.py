"""Who has come to a ps, who has left it, and whether the run is over."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from terngrad.exchange.channel import name_of

_GRACE_SECS = 5.0  # for the others to learn of a loss, and to go


class Attendance:
    """Workers by what became of them; any thread may call.

    Attributes:
      lost: what happened to the first worker that was lost; "" if none was.
      stopped_with: workers that were here when `stop` was called first.
    """

    def __init__(self, worker_hosts: Sequence[str]) -> None:
        """Nobody has come yet."""
        self.lost = ""
        self.stopped_with = 0
        self._hosts = worker_hosts
        self._present: set[int] = set()
        self._left: set[int] = set()
        self._lost_at = 0.0
        self._stopped = False
        self._changed = threading.Condition()

    def come(self, worker: int) -> bool:
        """Notes that a worker has come; False if it is here already."""
        with self._changed:
            if worker in self._present:
                return False
            self._present.add(worker)
            self._left.discard(worker)
            self._changed.notify_all()
            return True

    def leave(self, worker: int, why: str = "") -> None:
        """Notes that a worker has gone; `why` if not because all was done."""
        with self._changed:
            self._present.discard(worker)
            if not why:
                self._left.add(worker)
            elif not self.lost:
                self.lost = f"{name_of(worker, self._hosts)} {why}"
                self._lost_at = time.monotonic()
            self._changed.notify_all()

    def stop(self) -> None:
        """Ends `wait`."""
        with self._changed:
            if not self._stopped:
                self.stopped_with = len(self._present)
            self._stopped = True
            self._changed.notify_all()

    def wait(self) -> None:
        """Returns when all workers have left, or one was lost and the others had time to go."""
        with self._changed:
            while not self._is_over():
                self._changed.wait(0.5)

    def _is_over(self) -> bool:
        if self.lost:
            late = time.monotonic() > self._lost_at + _GRACE_SECS
            return self._stopped or late or not self._present
        return self._stopped or len(self._left) == len(self._hosts)
