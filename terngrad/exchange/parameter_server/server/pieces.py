"""What a ps holds of a piece of an operation: parts of the current steps, and results."""

from __future__ import annotations

import collections
import dataclasses
import time

from terngrad.exchange.parameter_server.operations import Operation
from terngrad.exchange.parameter_server.server.catalogue import PushError
from terngrad.exchange.parameter_server.server.worker_views import ReportedView

_OPEN_STEPS = 2  # the current step and the next

Destination = tuple[int, int]  # a worker, and the index that it gave the operation


@dataclasses.dataclass
class PieceStep:
    """One step of a piece.

    Attributes:
      contributors: workers whose parts make the result.
      parts: the parts that have arrived, by worker.
      first_at: time at which the first part arrived.
      asked: where the result goes.
      is_reducing: whether all parts have arrived and the result is being computed.
    """

    contributors: tuple[int, ...]
    parts: dict[int, memoryview] = dataclasses.field(default_factory=dict)
    first_at: float = dataclasses.field(default_factory=time.monotonic)
    asked: set[Destination] = dataclasses.field(default_factory=set)
    is_reducing: bool = False


@dataclasses.dataclass
class Piece:
    """A piece of an operation, in one view.

    Attributes:
      view: the view.
      done: last step with a result.
      results: contributors and payload of the last results, by step.
      steps: steps under way.
    """

    view: ReportedView
    done: int = -1
    results: collections.OrderedDict[int, tuple[bytes, memoryview]] = dataclasses.field(
        default_factory=collections.OrderedDict
    )
    steps: dict[int, PieceStep] = dataclasses.field(default_factory=dict)

    def drop_results(self, kept: int) -> int:
        """Drops all results but the last `kept`; returns the dropped bytes."""
        dropped = 0
        while len(self.results) > kept:
            dropped += kept_bytes(self.results.popitem(last=False)[1][1])
        return dropped


def kept_bytes(part: memoryview) -> int:
    """Returns the bytes that a part keeps in memory: those of its whole message."""
    return memoryview(part.obj).nbytes


def open_step(
    operation: Operation, piece: Piece, number: int, contributors: tuple[int, ...]
) -> PieceStep:
    """Returns a step of a piece; opens it if it is new.

    Raises:
      PushError: the contributors differ, or too many steps are under way.
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
            f"other workers have {list(step.contributors)}"
        )
    return step
