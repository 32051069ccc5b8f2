"""The laws of each step of a worker, whatever happens to the others."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import numpy as np

from terngrad.coordination import groups
from terngrad.service.messages import View

_LARGEST = (1 << 30) - 1  # largest gradient: doubled, it does not overflow int32
_STATE = struct.Struct("<qI")

Result = tuple[np.ndarray, int]  # sum of an operation, and its number of contributors


class BrokenLawError(AssertionError):
    """A worker broke a law."""


def require(holds: object, why: str) -> None:
    """Raises BrokenLawError with the reason if a condition does not hold."""
    if not holds:
        raise BrokenLawError(why)


class State:
    """The state of a worker: its steps, and a checksum over the contributors to each.

    Attributes:
      steps: number of steps made.
      checksum: checksum over the contributors to each step.
    """

    def __init__(self, content: bytes = _STATE.pack(0, 0)) -> None:
        """Reads a state from bytes; the default has no steps."""
        self.steps, self.checksum = _STATE.unpack(content)

    def __bytes__(self) -> bytes:
        """Returns the bytes that a donor sends."""
        return _STATE.pack(self.steps, self.checksum)

    def apply(self, contributors: Sequence[int]) -> None:
        """Adds a step."""
        made = f"{self.steps} {list(contributors)}".encode()
        self.steps, self.checksum = self.steps + 1, zlib.crc32(made, self.checksum)


class Ledger:
    """The states of a cluster's workers by view and step."""

    def __init__(self) -> None:
        """Starts without steps."""
        self._views: dict[int, bytes] = {}
        self._states: dict[tuple[int, int], bytes] = {}
        self._saved: set[bytes] = set()  # at the end

    def note_view(self, view: View) -> None:
        """Notes a worker's view; all workers must get the same view for a number."""
        content = view.SerializeToString()
        counted = self._views.setdefault(view.number, content)
        require(counted == content, f"view {view.number} differs between two workers")

    def note_saved(self, state: State) -> None:
        """Notes that a worker saves a state at the end."""
        self._saved.add(bytes(state))

    def check_saved(self, state: State) -> None:
        """Nobody ends before a worker has saved the last state."""
        require(bytes(state) in self._saved, f"nobody saved step {state.steps}, the last one")

    def note_step(self, worker: int, view: View) -> None:
        """Notes a step of a worker."""

    def note_state(self, worker: int, view: View, state: State) -> None:
        """Notes a worker's state; workers with as many steps in a view must have the same state."""
        first = self._states.setdefault((view.number, state.steps), bytes(state))
        where = f"worker {worker}, view {view.number}, step {state.steps}"
        require(first == bytes(state), f"{where}: the state differs from that of another worker")


def gradient(worker: int, state: State, operation: int, workers: int) -> np.ndarray:
    """Returns a worker's gradient: only the worker's own element is set, by a hash of its state."""
    found = np.zeros(workers, np.int32)
    found[worker] = 1 + zlib.crc32(b"%d %d %b" % (worker, operation, bytes(state))) % _LARGEST
    return found


def contributors_of(results: Sequence[Result], state: State, view: View) -> tuple[int, ...]:
    """Returns the contributors to the next step of a state, from the results of its operations.

    Raises:
      BrokenLawError: the results are not of one step that enough members of the view made once,
        from that state.
    """
    step, found = state.steps, set()
    for operation, (values, counted) in enumerate(results):
        makers = tuple(int(worker) for worker in np.flatnonzero(values))
        for worker in makers:
            wanted = gradient(worker, state, operation, len(values))[worker]
            text = f"step {step}, operation {operation}: worker {worker} counts {values[worker]}"
            require(values[worker] == wanted, f"{text}, not {wanted}")
        require(
            counted == len(makers), f"step {step}: {len(makers)} workers made it, not {counted}"
        )
        found.add(makers)
    require(len(found) == 1, f"step {step}: its operations have different workers: {found}")
    (makers,) = found
    members = groups.unpack(view.members)
    require({*makers} <= {*members}, f"step {step}: made by {makers}; members are {members}")
    require(len(makers) >= view.needed, f"step {step}: made by {makers}; {view.needed} are needed")
    return makers
