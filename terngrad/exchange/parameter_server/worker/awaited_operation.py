"""An operation that a worker has declared, and the result that it waits for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from terngrad.exchange.parameter_server.operations import Operation
from terngrad.service.messages import Header

# Takes the bytes of a result, and how many workers it is of.
Deliver = Callable[[np.ndarray, int], None]


@dataclasses.dataclass
class AwaitedOperation:
    """An operation and where it stands.

    Attributes:
      index: in the order of declaration.
      operation: what it is.
      servers: index of the ps of each piece.
      deliver: takes a result; `cancel`: tells that there will be none.
      step: whose result is awaited.
      view: in which.
      contributors: of whose parts it is; None while that is not decided.
      result: what of it has come.
      missing: pieces that have not.
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
        """Waits for a step's result from now on."""
        self.step, self.view = step, view
        self.result = np.empty(self.operation.items * self.operation.result_bytes, np.uint8)
        self.missing = set(range(self.operation.pieces))

    def awaits(self, header: Header) -> bool:
        """Whether a piece is one that has yet to come."""
        is_current = (header.step, header.view) == (self.step, self.view)
        return is_current and header.piece in self.missing

    def deliver_nothing(self) -> None:
        """Lets a step that was given up come to its end."""
        size = self.operation.items * self.operation.result_bytes
        self.deliver(np.zeros(size, np.uint8), self.operation.workers)
