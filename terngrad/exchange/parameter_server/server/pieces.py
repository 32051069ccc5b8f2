"""What a ps has of a piece of an operation: the parts of the steps under way, and results."""

from __future__ import annotations

import collections
import dataclasses
import time

from terngrad.exchange.parameter_server.operations import Operation
from terngrad.exchange.parameter_server.server.catalogue import PushError

_OPEN_STEPS = 2  # the step under way and the next

Address = tuple[int, int]  # a worker, and the index that it gave an operation


@dataclasses.dataclass
class PieceStep:
    """What there is of a piece at one step.

    Attributes:
      contributors: whose parts make the result.
      parts: that have come, by worker.
      first_at: when the first of them came.
      asked: who wants the result.
      is_reducing: all have come, and the result is being computed.
    """

    contributors: tuple[int, ...]
    parts: dict[int, memoryview] = dataclasses.field(default_factory=dict)
    first_at: float = dataclasses.field(default_factory=time.monotonic)
    asked: set[Address] = dataclasses.field(default_factory=set)
    is_reducing: bool = False


@dataclasses.dataclass
class Piece:
    """A piece of an operation, in one view.

    Attributes:
      done: last step of which there is a result.
      results: last payloads by step, with their contributors.
      steps: those under way.
    """

    done: int = -1
    results: collections.OrderedDict[int, tuple[bytes, memoryview]] = dataclasses.field(
        default_factory=collections.OrderedDict
    )
    steps: dict[int, PieceStep] = dataclasses.field(default_factory=dict)

    def drop_results(self, kept: int) -> int:
        """Drops all results but the last so many; returns their bytes."""
        dropped = 0
        while len(self.results) > kept:
            dropped += kept_bytes(self.results.popitem(last=False)[1][1])
        return dropped


def kept_bytes(part: memoryview) -> int:
    """Bytes that stay in memory with a part: all of the message that it lies in."""
    return memoryview(part.obj).nbytes


def open_step(
    operation: Operation, piece: Piece, number: int, contributors: tuple[int, ...]
) -> PieceStep:
    """The step of a piece, which may begin now.

    Raises:
      PushError: there are other contributors, or too many steps are under way.
    """
    step = piece.steps.get(number)
    if step is None:
        if len(piece.steps) == _OPEN_STEPS:
            under_way = " and ".join(map(str, sorted(piece.steps)))
            raise PushError(f"{operation.name}: step is {number}; steps {under_way} are under way")
        step = piece.steps[number] = PieceStep(contributors)
    if step.contributors != contributors:
        raise PushError(
            f"{operation.name}: contributors of step {number} are {list(contributors)}; "
            f"others say {list(step.contributors)}"
        )
    return step
