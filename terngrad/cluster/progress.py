"""The progress that processes report in heartbeats, and which process the others wait for.

A process whose main thread hangs still sends heartbeats, from another thread. But while all
train in step, a process that gets no next batch falls behind the others, which wait for its
gradients: it alone has taken fewer batches. A process that computes for a long time is not behind.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

STEP = "a step"
CALL = "a call of reducer"  # with its index; outside graphs, where calls run in order
_LONGEST_NAME = 256
GIVE_UP_TIME_OUTS = 10  # time-outs after which even a slow step counts as failed


class OperationProgress(NamedTuple):
    """Which operations with the other processes a process has begun.

    Attributes:
      count: how many.
      last: name of the last one.
      alike: how many of the last ones have this name, such as the parts of a step, which need not
        wait for one another.
    """

    count: int = 0
    last: str = ""
    alike: int = 1

    @classmethod
    def read(cls, message: object) -> OperationProgress:
        """Reads another process' message; returns an empty value if it is malformed."""
        match message:
            case [int(count), str(last), int(alike)] if len(last) <= _LONGEST_NAME:
                return cls(count, last, alike)
        return cls()


class ProcessProgress:
    """How far this process is, which it reports to the others in heartbeats.

    Attributes:
      batches: number of batches taken since the training began; None outside steps: compiling,
        saving and writing summaries may take any time.
      operations: those with the others that this process has begun, where it counts them.
    """

    def __init__(self) -> None:
        """Starts outside steps."""
        self.batches: int | None = None
        self.operations = OperationProgress()
        self._lock = threading.Lock()

    def begin(self, what: str) -> None:
        """Counts an operation with the others; all processes must begin the same ones.

        Parts of a step all count as `STEP`, because parts of a graph begin in any order. A call
        outside a graph has a name of its own, `CALL` with a number.
        """
        with self._lock:
            count, last, alike = self.operations
            self.operations = OperationProgress(count + 1, what, alike + 1 if what == last else 1)

    @contextlib.contextmanager
    def steps(self, done: int) -> Iterator[None]:
        """Marks a block that makes steps, after `done` earlier ones."""
        self.batches = done
        try:
            yield
        finally:
            self.batches = None

    def tick(self) -> None:
        """Counts a batch; callable from any thread."""
        if self.batches is not None:
            self.batches += 1


def divergence(operations: Mapping[int, OperationProgress], name: Callable[[int], str]) -> str:
    """Says which processes are in different operations, each of which waits for ever.

    All begin the same ones in the same order, so the operation of a number is the same for all.

    Args:
      operations: by rank.
      name: returns the name of a process for messages.

    Returns:
      The error; "" = there is none.
    """
    named = {rank: each for rank, each in sorted(operations.items()) if each.last}
    for number in sorted({each.count for each in named.values()}):
        by_operation: dict[str, list[int]] = {}
        for rank, (count, last, alike) in named.items():
            if count - alike < number <= count:
                by_operation.setdefault(last, []).append(rank)
        if STEP in by_operation:  # others may make their steps outside a graph
            for call in [what for what in by_operation if what.startswith(CALL)]:
                by_operation[STEP] += by_operation.pop(call)
        if len(by_operation) > 1:
            each = (f"{what} on {', '.join(map(name, on))}" for what, on in by_operation.items())
            where = " and ".join(each)
            return (
                f"the workers do not run the same operations: number {number} is {where}: "
                "all need equally many batches and calls"
            )
    return ""


class StallDetector:
    """Finds the processes that are behind while no process makes progress.

    Attributes:
      give_up_secs: after this long without progress the training has failed, whatever the reason.
    """

    def __init__(self, timeout_secs: float) -> None:
        """Allows stalls of up to `timeout_secs`."""
        self._timeout_secs = timeout_secs
        self.give_up_secs = GIVE_UP_TIME_OUTS * timeout_secs
        self._batches: dict[int, int | None] = {}
        self._operations: dict[int, int] = {}
        self._moved_at: dict[int, float] = {}

    @property
    def max_batches(self) -> int:
        """Largest number of batches that a process within steps has taken."""
        return max((count for count in self._batches.values() if count is not None), default=0)

    def note(self, rank: int, batches: int | None, now: float, operations: int = 0) -> None:
        """Records the progress that a process reports; see `ProcessProgress`.

        Args:
          rank: index of the process.
          batches: its batches. Keras may take several in one call, which count at its end.
          now: when it reports.
          operations: those with the others that it has begun, which count within such a call, too.
        """
        moved = self._batches.get(rank, -1) != batches or self._operations.get(rank) != operations
        self._batches[rank], self._operations[rank] = batches, operations
        if moved:
            self._moved_at[rank] = now

    def forget(self, rank: int) -> None:
        """Drops a process that is done: no other waits for its steps."""
        self._batches.pop(rank, None)
        self._operations.pop(rank, None)

    def should_give_up(self, now: float) -> bool:
        """Whether all are within steps and none has made progress for `give_up_secs`."""
        at_work = self._batches and None not in self._batches.values()
        return bool(at_work) and now - max(self._moved_at.values()) > self.give_up_secs

    def stuck(self, now: float, time_outs: int = 1) -> list[int]:
        """Returns the processes that have been in the same step for `time_outs` time-outs."""
        limit = time_outs * self._timeout_secs
        at_work = [rank for rank, count in self._batches.items() if count is not None]
        return [rank for rank in at_work if now - self._moved_at[rank] > limit]

    def late(self, now: float) -> list[int]:
        """Returns the processes for whose next batch the others have waited too long."""
        counts = {rank: count for rank, count in self._batches.items() if count is not None}
        first = max(counts.values(), default=0)
        behind = [rank for rank, count in counts.items() if count < first]
        if not behind or now - max(self._moved_at.values()) <= self._timeout_secs:
            return []
        return behind
