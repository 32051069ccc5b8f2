"""A declared operation of a worker, and the result that the worker waits for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from terngrad.exchange.parameter_server.operations import Operation
from terngrad.service.messages import Header

# Takes the bytes of a result, the number of workers that contributed to the step, and whether the
# result lacks this worker's own part, which is to be added.
Deliver = Callable[[np.ndarray, int, bool], None]


@dataclasses.dataclass
class AwaitedOperation:
    """An operation and its progress.

    Attributes:
      index: index in the order of declaration.
      operation: what is computed.
      servers: index of the ps of each piece.
      deliver: takes a result.
      cancel: called when no more results will arrive.
      step: step of the awaited result.
      view: number of the view in which that step is made.
      contributors: workers that make that step; None until ps 0 decides.
      result: bytes of the result; pieces fill it as they arrive.
      missing: pieces that have not arrived.
    """

    index: int
    operation: Operation
    servers: list[int]
    deliver: Deliver
    cancel: Callable[[], None]
    step: int = -1
    view: int = 0
    contributors: bytes | None = None
    result: np.ndarray | None = None
    missing: set[int] = dataclasses.field(default_factory=set)

    def expect(self, step: int, view: int) -> None:
        """Starts to wait for the result of a step."""
        self.step, self.view = step, view
        self.result = np.empty(self.operation.items * self.operation.result_bytes, np.uint8)
        self.missing = set(range(self.operation.pieces))

    def awaits(self, header: Header) -> bool:
        """Whether a piece of the awaited result is missing."""
        is_current = (header.step, header.view) == (self.step, self.view)
        return is_current and header.piece in self.missing

    def deliver_nothing(self) -> None:
        """Delivers zeros, so that an abandoned step can end."""
        size = self.operation.items * self.operation.result_bytes
        self.deliver(np.zeros(size, np.uint8), self.operation.workers, False)
