"""A declared operation of a worker, and the result that the worker waits for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from terngrad.exchange.parameter_server.operations import Operation
from terngrad.ops.packing import Packing
from terngrad.service.messages import Header

_TENSOR_ALIGNMENT = 64  # bytes; TensorFlow copies arrays that lie otherwise

NO_PIECE = -1  # in `missing` until the push is sent, where this worker gets no piece

# Takes the bytes of a result, the number of workers that contributed to the step, whether the
# result lacks this worker's own part, which is to be added, and the bytes of the payloads that this
# worker has sent and received for it.
Deliver = Callable[[np.ndarray, int, bool, tuple[int, int]], None]


@dataclasses.dataclass
class AwaitedOperation:
    """An operation and its progress.

    Attributes:
      index: index in the order of declaration.
      operation: what is computed.
      servers: index of the ps of each piece.
      deliver: takes a result.
      cancel: called when no more results will arrive.
      packing: of the codes; may be None for other kinds.
      step: step of the awaited result.
      view: number of the view in which that step is made.
      contributors: workers that make that step; None until ps 0 decides.
      result: bytes of the result; pieces fill it as they arrive; pieces that others get are zeros.
      missing: pieces that have not arrived.
      sent: bytes of the payloads that were pushed in that step.
      received: bytes of the payloads that have arrived.
    """

    index: int
    operation: Operation
    servers: list[int]
    deliver: Deliver
    cancel: Callable[[], None]
    packing: Packing | None = None
    step: int = -1
    view: int = 0
    contributors: bytes | None = None
    result: np.ndarray | None = None
    missing: set[int] = dataclasses.field(default_factory=set)
    sent: int = 0
    received: int = 0

    def expect(self, step: int, view: int, worker: int, members: Sequence[int]) -> None:
        """Starts to wait for the result of a step of a view's members, as this worker gets it."""
        self.step, self.view = step, view
        self.sent = self.received = 0
        operation, pieces = self.operation, range(self.operation.pieces)
        self.missing = {i for i in pieces if operation.receives(worker, i, members)}
        is_whole = len(self.missing) == operation.pieces
        self.result = _aligned(operation.items * operation.result_bytes, is_whole=is_whole)
        self.missing = self.missing or {NO_PIECE}

    def awaits(self, header: Header) -> bool:
        """Whether a piece of the awaited result is missing."""
        is_current = (header.step, header.view) == (self.step, self.view)
        return is_current and header.piece in self.missing

    def payload(self, piece: int, content: memoryview) -> memoryview:
        """Returns a piece of a push as it travels; `content` is the whole."""
        first, end = self.operation.piece_items(piece)
        size = self.operation.pushed_bytes
        part = content[first * size : end * size]
        if not self.operation.is_packed:
            return part
        return self.packing.pack(part, self.operation.largest_pushed)

    def fill(self, piece: int, payload: memoryview, result: np.ndarray) -> None:
        """Writes a piece of a result from the payload of its message.

        Raises:
          ValueError: the payload is not a result of this operation.
        """
        first, end = self.operation.piece_items(piece)
        size = self.operation.result_bytes
        part = result[first * size : end * size]
        if self.operation.is_packed:
            self.packing.unpack(payload, self.operation.largest_result, part)
        elif payload.nbytes != part.nbytes:
            raise ValueError(f"it has {payload.nbytes} bytes; allowed is {part.nbytes}")
        else:
            part[:] = payload

    def deliver_nothing(self) -> None:
        """Delivers zeros, so that an abandoned step can end; its bytes are not counted."""
        size = self.operation.items * self.operation.result_bytes
        self.deliver(np.zeros(size, np.uint8), self.operation.workers, False, (0, 0))


def _aligned(size: int, *, is_whole: bool) -> np.ndarray:
    """Returns new bytes that a tensor can use without a copy: zeros, unless all are filled."""
    whole = (np.empty if is_whole else np.zeros)(size + _TENSOR_ALIGNMENT, np.uint8)
    first = -whole.ctypes.data % _TENSOR_ALIGNMENT
    return whole[first : first + size]
