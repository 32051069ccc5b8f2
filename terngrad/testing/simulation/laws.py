"""What holds of each step that a worker makes, whatever happens to the others."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import numpy as np

from terngrad.exchange.parameter_server import groups
from terngrad.service.messages import View

_LARGEST = (1 << 30) - 1  # of a gradient: twice as much is still another number
_STATE = struct.Struct("<qI")

Result = tuple[np.ndarray, int]  # the sum of an operation, and of how many workers it says to be


class BrokenLawError(AssertionError):
    """A worker did what none may do."""


def require(holds: object, why: str) -> None:
    """Raises BrokenLawError with the reason if something does not hold."""
    if not holds:
        raise BrokenLawError(why)


class State:
    """What a worker has trained: which steps, and a checksum over who made each of them.

    Attributes:
      steps: made so far.
      checksum: of the contributors to each.
    """

    def __init__(self, content: bytes = _STATE.pack(0, 0)) -> None:
        """From bytes, or of no steps."""
        self.steps, self.checksum = _STATE.unpack(content)

    def __bytes__(self) -> bytes:
        """As a donor gives it."""
        return _STATE.pack(self.steps, self.checksum)

    def apply(self, contributors: Sequence[int]) -> None:
        """Makes a step."""
        made = f"{self.steps} {list(contributors)}".encode()
        self.steps, self.checksum = self.steps + 1, zlib.crc32(made, self.checksum)


class Ledger:
    """The states that the workers of a cluster had, by view and step."""

    def __init__(self) -> None:
        """Nobody has made a step."""
        self._views: dict[int, bytes] = {}
        self._states: dict[tuple[int, int], bytes] = {}

    def note_view(self, view: View) -> None:
        """A worker was told of a view: all are told the same of it."""
        content = view.SerializeToString()
        told = self._views.setdefault(view.number, content)
        require(told == content, f"view {view.number} is another for each of two workers")

    def note_state(self, worker: int, view: View, state: State) -> None:
        """A worker has a state in a view: all that are as far in that view have the same."""
        first = self._states.setdefault((view.number, state.steps), bytes(state))
        where = f"worker {worker}, view {view.number}, step {state.steps}"
        require(first == bytes(state), f"{where}: the state differs from that of another worker")


def gradient(worker: int, state: State, operation: int, workers: int) -> np.ndarray:
    """A worker's gradient: in the worker's own place a number that no other state leads to."""
    found = np.zeros(workers, np.int32)
    found[worker] = 1 + zlib.crc32(b"%d %d %b" % (worker, operation, bytes(state))) % _LARGEST
    return found


def contributors_of(results: Sequence[Result], state: State, view: View) -> tuple[int, ...]:
    """The workers that made the next step of a state, found in the results of its operations.

    Raises:
      BrokenLawError: the results are not those of one step, made once, from that same state, by
        enough members of a view.
    """
    step, found = state.steps, set()
    for operation, (values, told) in enumerate(results):
        makers = tuple(int(worker) for worker in np.flatnonzero(values))
        for worker in makers:
            wanted = gradient(worker, state, operation, len(values))[worker]
            text = f"step {step}, operation {operation}: worker {worker} counts {values[worker]}"
            require(values[worker] == wanted, f"{text}, not {wanted}")
        require(told == len(makers), f"step {step}: {len(makers)} workers made it, not {told}")
        found.add(makers)
    require(len(found) == 1, f"step {step}: its operations are of different workers: {found}")
    (makers,) = found
    members = groups.unpack(view.members)
    require({*makers} <= {*members}, f"step {step}: made by {makers}; members are {members}")
    require(len(makers) >= view.needed, f"step {step}: made by {makers}; {view.needed} are needed")
    return makers
