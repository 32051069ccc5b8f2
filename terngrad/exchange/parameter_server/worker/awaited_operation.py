"""A declared operation of a worker, and the result that the worker waits for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

import numpy as np

from terngrad.exchange.parameter_server.operations import Operation
from terngrad.service.messages import Header

_TENSOR_ALIGNMENT = 64  # bytes; TensorFlow copies arrays that lie otherwise

# Takes the bytes of a result, the number of workers that contributed to the step, and whether the
# result lacks this worker's own part, which is to be added.
Deliver = Callable[[np.ndarray, int, bool], None]


class Packing(Protocol):
    """Brings codes into base 3 and back; see `Kernels`."""

    def pack_base3(self, words: memoryview, digits: int) -> memoryview: ...

    def unpack_base3(self, packed: memoryview, digits: int, words: np.ndarray) -> None: ...


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
      result: bytes of the result; pieces fill it as they arrive.
      missing: pieces that have not arrived.
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

    def expect(self, step: int, view: int) -> None:
        """Starts to wait for the result of a step."""
        self.step, self.view = step, view
        self.result = _aligned(self.operation.items * self.operation.result_bytes)
        self.missing = set(range(self.operation.pieces))

    def awaits(self, header: Header) -> bool:
        """Whether a piece of the awaited result is missing."""
        is_current = (header.step, header.view) == (self.step, self.view)
        return is_current and header.piece in self.missing

    def payload(self, piece: int, content: memoryview) -> memoryview:
        """Returns a piece of a push as it travels; `content` is the whole."""
        first, end = self.operation.piece_items(piece)
        size = self.operation.pushed_bytes
        part = content[first * size : end * size]
        digits = self.operation.pushed_digits
        return self.packing.pack_base3(part, digits) if digits else part

    def fill(self, piece: int, payload: memoryview, result: np.ndarray) -> None:
        """Writes a piece of a result from the payload of its message."""
        first, end = self.operation.piece_items(piece)
        size = self.operation.result_bytes
        part = result[first * size : end * size]
        if digits := self.operation.result_digits:
            self.packing.unpack_base3(payload, digits, part)
        else:
            part[:] = payload

    def deliver_nothing(self) -> None:
        """Delivers zeros, so that an abandoned step can end."""
        size = self.operation.items * self.operation.result_bytes
        self.deliver(np.zeros(size, np.uint8), self.operation.workers, False)


def _aligned(size: int) -> np.ndarray:
    """Returns new bytes that a tensor can use without a copy."""
    whole = np.empty(size + _TENSOR_ALIGNMENT, np.uint8)
    first = -whole.ctypes.data % _TENSOR_ALIGNMENT
    return whole[first : first + size]
