"""The operations that the workers of a ps have declared."""

from __future__ import annotations

import dataclasses
from collections.abc import Container

from terngrad.coordination.decisions import MAX_STEPS
from terngrad.exchange.parameter_server.operations import InvalidOperationError, Operation
from terngrad.service.messages import Header, OperationMessage

MAX_PIECES = 1 << 16  # of all operations of a worker: 64 GB a step


class PushError(ValueError):
    """The message says why a declaration or a push is refused."""


@dataclasses.dataclass
class _WorkerOperations:
    """One worker's operations by index, their names, their pieces, and the bytes of results."""

    operations: list[Operation] = dataclasses.field(default_factory=list)
    names: set[str] = dataclasses.field(default_factory=set)
    pieces: int = 0
    result_bytes: int = 0


class Catalogue:
    """The operations of each worker, in the order of declaration; not safe for threads.

    An operation is known while a connected worker has declared it.
    """

    def __init__(self, workers: int) -> None:
        """Starts with no operations."""
        self._known: dict[str, Operation] = {}
        self._workers = [_WorkerOperations() for _ in range(workers)]

    @property
    def piece_count(self) -> int:
        """Largest number of pieces of a worker, which bounds its results in a step."""
        return max(worker.pieces for worker in self._workers)

    def result_bytes(self, worker: int) -> int:
        """Returns the bytes of a worker's results in a step, the most that they have."""
        return self._workers[worker].result_bytes

    @property
    def undeclared(self) -> set[int]:
        """Workers that have declared no operation."""
        return {i for i, worker in enumerate(self._workers) if not worker.operations}

    def clear(self, worker: int) -> Container[str]:
        """Forgets a worker's operations; returns the names that other workers have declared."""
        self._workers[worker] = _WorkerOperations()
        names = set().union(*(other.names for other in self._workers))
        self._known = {name: each for name, each in self._known.items() if name in names}
        return names

    def declare(self, worker: int, message: OperationMessage) -> None:
        """Adds a worker's next operation.

        Raises:
          PushError: it is out of order, invalid, differs from that of another worker, or has too
            many pieces.
        """
        try:
            operation = Operation.read(message, len(self._workers))
        except InvalidOperationError as error:
            raise PushError(str(error)) from None
        declared = self._workers[worker]
        if message.index != (index := len(declared.operations)):
            raise PushError(f"operation index is {message.index}; allowed is {index}, the next one")
        if operation.name in declared.names:
            raise PushError(f"{operation.name} is declared twice")
        if (pieces := declared.pieces + operation.pieces) > MAX_PIECES:
            text = f"a step has {pieces} pieces with {operation.name}; allowed are {MAX_PIECES}"
            raise PushError(text)
        known = self._known.setdefault(operation.name, operation)
        if operation != known:
            raise PushError(_difference(known, operation))
        declared.operations.append(known)
        declared.names.add(known.name)
        declared.pieces = pieces
        declared.result_bytes += known.items * known.result_bytes

    def find(self, worker: int, header: Header) -> Operation:
        """Returns the operation of a pushed piece.

        Raises:
          PushError: there is no such operation, piece or step.
        """
        operations = self._workers[worker].operations
        if header.operation >= len(operations):
            raise PushError(
                f"operation {header.operation} was not declared; declared are {len(operations)}"
            )
        operation = operations[header.operation]
        if header.piece >= operation.pieces:
            last = operation.pieces - 1
            raise PushError(f"{operation.name}: piece is {header.piece}; allowed is 0 to {last}")
        if header.step > MAX_STEPS:
            raise PushError(f"{operation.name}: step is {header.step}; allowed is up to 2^62")
        return operation


def _difference(others: Operation, mine: Operation) -> str:
    fields = [f.name for f in dataclasses.fields(Operation)]
    name = next(name for name in fields if getattr(others, name) != getattr(mine, name))
    here, there = getattr(mine, name), getattr(others, name)
    return f"{name} of {mine.name} is {here}; another worker has {there}"
