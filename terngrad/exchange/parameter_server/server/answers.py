"""What a ps answers the workers that asked for a step of a piece."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from terngrad.exchange.parameter_server.operations import Operation


class Arithmetic(Protocol):
    """Computes results; many threads may call at the same time."""

    def reduce(self, operation: Operation, parts: Sequence[memoryview]) -> memoryview:
        """Returns the result of some workers' pushes of a piece, in the order of workers."""

    def leave_out(self, operation: Operation, total: memoryview, part: memoryview) -> memoryview:
        """Returns a result without one of the pushes in it; see `Operation.leaves_out_own`."""


class Answers:
    """The answers to a step of a piece whose parts have all arrived."""

    def __init__(
        self,
        arithmetic: Arithmetic,
        operation: Operation,
        parts: Mapping[int, memoryview],
        *,
        keeps: bool,
    ) -> None:
        """Adds the parts, unless two contributors need no more than each other's.

        Args:
          arithmetic: combines the parts.
          operation: operation of the piece.
          parts: push of each contributor, in the order of workers.
          keeps: whether workers may ask later, which get the result of all parts.
        """
        self._arithmetic, self._operation, self._parts = arithmetic, operation, parts
        self._swaps = operation.leaves_out_own and len(parts) == 2
        self._total = None if self._swaps and not keeps else self._add(parts)

    @property
    def total(self) -> memoryview:
        """The result of all parts.

        Where contributors get the sum of the others, it is a sum modulo 2^planes. It is the sum
        itself where some worker has not contributed, which then gets it.
        """
        if self._total is None:
            self._total = self._add(self._parts)
        return self._total

    def differ(self, worker: int) -> bool:
        """Whether a worker gets an answer of its own, the sum of the other contributors."""
        return self._operation.leaves_out_own and worker in self._parts

    def to(self, worker: int) -> memoryview:
        """Returns the answer to a worker."""
        if not self.differ(worker):
            return self.total
        if self._swaps:
            return self._add({i: part for i, part in self._parts.items() if i != worker})
        return self._arithmetic.leave_out(self._operation, self.total, self._parts[worker])

    def _add(self, parts: Mapping[int, memoryview]) -> memoryview:
        return self._arithmetic.reduce(self._operation, [*parts.values()])
