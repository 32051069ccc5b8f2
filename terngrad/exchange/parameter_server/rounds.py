"""The rounds of a ps: who has pushed what of which step, and what came of it.

Its memory is bounded: of a piece there are the pushes of at most two steps, and the result of the
last. All is checked against what the workers declared, before anything is kept.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence

from terngrad.exchange.parameter_server.messages import Header, OperationMessage, join_frame
from terngrad.exchange.parameter_server.operations import Operation, OperationError

_OPEN_STEPS = 2  # the step under way and the next

Reduce = Callable[[Operation, Sequence[memoryview]], memoryview]


class PushError(ValueError):
    """Says why something that a worker pushed cannot be taken."""


@dataclasses.dataclass
class _Piece:
    """A piece of an operation.

    Attributes:
      done: last step of which there is a result, or of which it is being computed.
      result: frame of that step; empty while it is being computed.
      pushed: of each open step, what each worker pushed.
    """

    done: int = -1
    result: bytes = b""
    pushed: dict[int, dict[int, memoryview]] = dataclasses.field(default_factory=dict)


class Rounds:
    """Joins what the workers push; any thread may call."""

    def __init__(self, workers: int, reduce: Reduce, deliver: Callable[[int, bytes], None]) -> None:
        """Starts with no operations.

        Args:
          workers: that must all push before there is a result.
          reduce: see `Reduction`.
          deliver: called with a worker and a frame for it; must not wait.
        """
        self._workers = workers
        self._reduce = reduce
        self._deliver = deliver
        self._lock = threading.Lock()
        self._operations: list[Operation] = []
        self._declared = [0] * workers
        self._pieces: dict[tuple[int, int], _Piece] = {}

    @property
    def piece_count(self) -> int:
        """Pieces of all operations; a worker has at most so many results of one step."""
        with self._lock:
            return sum(operation.pieces for operation in self._operations)

    def held_bytes(self) -> int:
        """Bytes of pushes and results that are kept."""
        with self._lock:
            pieces = list(self._pieces.values())
            pushes = [
                p for piece in pieces for step in piece.pushed.values() for p in step.values()
            ]
            return sum(len(piece.result) for piece in pieces) + sum(p.nbytes for p in pushes)

    def arrive(self, worker: int) -> None:
        """A worker begins a stream: it declares its operations from the first on."""
        with self._lock:
            self._declared[worker] = 0

    def declare(self, worker: int, message: OperationMessage) -> None:
        """Takes a worker's next operation.

        Raises:
          PushError: it is out of order, impossible, or another than that of the other workers.
        """
        try:
            operation = Operation.read(message, self._workers)
        except OperationError as error:
            raise PushError(str(error)) from None
        with self._lock:
            index = self._declared[worker]
            if operation.index != index:
                raise PushError(f"operation {operation.index} is declared where {index} is next")
            if index == len(self._operations):
                self._operations.append(operation)
            elif operation != self._operations[index]:
                raise PushError(_difference(self._operations[index], operation))
            self._declared[worker] += 1

    def push(self, worker: int, header: Header, payload: memoryview) -> None:
        """Takes a worker's piece of a step; the last one's brings the result to all.

        What a worker has pushed before changes nothing; if there is a result of it, the worker
        gets it again.

        Raises:
          PushError: unknown operation or piece, wrong size, or a step that is over or too far.
        """
        with self._lock:
            operation = self._find(worker, header)
            _check_size(operation, worker, header, payload)
            key = header.operation, header.piece
            piece = self._pieces.setdefault(key, _Piece())
            if header.step == piece.done:
                if piece.result:
                    self._deliver(worker, piece.result)
                return
            _check_step(operation, piece, header.step)
            pushed = piece.pushed.setdefault(header.step, {})
            pushed.setdefault(worker, payload)
            if len(pushed) < self._workers:
                return
            piece.done, piece.result = header.step, b""
            piece.pushed = {s: p for s, p in piece.pushed.items() if s > header.step}
        self._finish(operation, piece, header, [pushed[i] for i in range(self._workers)])

    def _finish(
        self, operation: Operation, piece: _Piece, header: Header, parts: list[memoryview]
    ) -> None:
        own = Header(step=header.step, operation=header.operation, piece=header.piece)
        result = join_frame(own, self._reduce(operation, parts))
        with self._lock:
            piece.result = result
        for worker in range(self._workers):
            self._deliver(worker, result)

    def _find(self, worker: int, header: Header) -> Operation:
        if header.operation >= self._declared[worker]:
            raise PushError(f"operation {header.operation} was not declared")
        operation = self._operations[header.operation]
        if header.piece >= operation.pieces:
            last = operation.pieces - 1
            raise PushError(f"{operation.name}: piece is {header.piece}; allowed is 0 to {last}")
        return operation


def _check_size(operation: Operation, worker: int, header: Header, payload: memoryview) -> None:
    size = operation.piece_bytes(header.piece, worker)
    if payload.nbytes != size:
        raise PushError(
            f"{operation.name}: piece {header.piece} has {payload.nbytes} bytes; allowed is {size}"
        )


def _check_step(operation: Operation, piece: _Piece, step: int) -> None:
    if step < piece.done:
        raise PushError(f"{operation.name}: step is {step}; that is over, the last is {piece.done}")
    if step not in piece.pushed and len(piece.pushed) == _OPEN_STEPS:
        under_way = " and ".join(map(str, sorted(piece.pushed)))
        raise PushError(f"{operation.name}: step is {step}; steps {under_way} are under way")


def _difference(others: Operation, mine: Operation) -> str:
    fields = [f.name for f in dataclasses.fields(Operation)]
    name = next(name for name in fields if getattr(others, name) != getattr(mine, name))
    here, there = getattr(mine, name), getattr(others, name)
    return f"{name} of operation {mine.index} is {here}, that of another worker {there}"
