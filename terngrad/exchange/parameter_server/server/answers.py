"""What a ps answers the workers that asked for a step of a piece."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from terngrad.exchange.parameter_server.operations import Operation


class Arithmetic(Protocol):
    """Computes results; many threads may call at the same time.

    Payloads are as they travel, opened pushes and results as a ps computes with them.
    """

    def open(self, operation: Operation, piece: int, payload: memoryview) -> memoryview:
        """Opens the payload of a push; ValueError if no push of this piece has these bytes."""

    def reduce(self, operation: Operation, parts: Sequence[memoryview]) -> memoryview:
        """Returns the result of some workers' pushes of a piece, in the order of workers."""

    def leave_out(self, operation: Operation, total: memoryview, part: memoryview) -> memoryview:
        """Returns a result without one of the pushes in it; see `Operation.leaves_out_own`."""

    def others(self, operation: Operation, parts: Sequence[memoryview]) -> Sequence[memoryview]:
        """Returns for each of the pushes the result of all others."""

    def payload(self, operation: Operation, result: memoryview) -> memoryview:
        """Returns a result as it travels."""


class Answers:
    """The answers to a step of a piece whose parts have all arrived."""

    def __init__(
        self,
        arithmetic: Arithmetic,
        operation: Operation,
        parts: Mapping[int, memoryview],
        *,
        swaps: bool,
        keeps: bool,
    ) -> None:
        """Computes what each contributor gets.

        Args:
          arithmetic: combines the parts.
          operation: operation of the piece.
          parts: push of each contributor, in the order of workers.
          swaps: whether the two parts are payloads, and each is the answer to the other.
          keeps: whether workers may ask later, which get the result of all parts.
        """
        self._arithmetic, self._operation = arithmetic, operation
        self._parts = [*parts.values()]
        self._others: dict[int, memoryview] = {}  # payloads
        if swaps:
            self._others = dict(zip(parts, reversed(self._parts), strict=True))
        elif operation.leaves_out_own:
            sums = arithmetic.others(operation, self._parts)
            others = [arithmetic.payload(operation, each) for each in sums]
            self._others = dict(zip(parts, others, strict=True))
        self._total = None if self._others and not keeps else self._add()

    @property
    def total(self) -> memoryview:
        """The result of all parts.

        Where contributors get the sum of the others, it is a sum modulo 2^planes. It is the sum
        itself where some worker has not contributed, which then gets it.
        """
        if self._total is None:
            self._total = self._add()
        return self._total

    def differ(self, worker: int) -> bool:
        """Whether a worker gets an answer of its own, the sum of the other contributors."""
        return worker in self._others

    def to(self, worker: int) -> memoryview:
        """Returns the payload of the answer to a worker."""
        if self.differ(worker):
            return self._others[worker]
        return self._arithmetic.payload(self._operation, self.total)

    def _add(self) -> memoryview:
        return self._arithmetic.reduce(self._operation, self._parts)
