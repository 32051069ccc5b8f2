"""The rounds of a ps: who has pushed what of which step, and what came of it.

Its memory is bounded: of a piece there are the pushes of at most two steps, and the results of so
many steps as slower workers may be behind. All is checked against what the workers declared,
before anything is kept. Each view is for itself, so that nobody trains on a step of two of them and
a worker that says to be in a strange one disturbs nobody; one that all have left is forgotten.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
import time
from collections.abc import Callable, Sequence

from terngrad.exchange.parameter_server import groups
from terngrad.exchange.parameter_server.figures import Figures
from terngrad.exchange.parameter_server.messages import Header, OperationMessage, join_frame
from terngrad.exchange.parameter_server.operations import MAX_OPERATIONS, Operation, OperationError

_OPEN_STEPS = 2  # the step under way and the next
_MOST_STEPS = 1 << 62

Reduce = Callable[[Operation, Sequence[memoryview]], memoryview]
Address = tuple[int, int]  # a worker, and the index that it gave an operation


class PushError(ValueError):
    """Says why something that a worker pushed cannot be taken."""


@dataclasses.dataclass
class _Step:
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
class _Piece:
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
    steps: dict[int, _Step] = dataclasses.field(default_factory=dict)


class Rounds:
    """Joins what the workers push; any thread may call."""

    def __init__(
        self,
        workers: int,
        reduce: Reduce,
        deliver: Callable[[int, bytes], None],
        kept_steps: int = 1,
        figures: Figures | None = None,
    ) -> None:
        """Starts with no operations.

        Args:
          workers: of the training.
          reduce: see `Reduction`.
          deliver: called with a worker and a frame for it; must not wait.
          kept_steps: whose results are kept, for workers that are behind.
          figures: take down what is done.
        """
        self._workers = workers
        self._reduce = reduce
        self._deliver = deliver
        self._kept_steps = kept_steps
        self._figures = figures or Figures(workers)
        self._lock = threading.Lock()
        self._operations: dict[str, Operation] = {}
        self._declared: list[list[Operation]] = [[] for _ in range(workers)]
        self._pieces: dict[tuple[int, str, int], _Piece] = {}  # by view, operation and index
        self._views = [0] * workers  # that each is in; 0: in none

    @property
    def piece_count(self) -> int:
        """Pieces of all operations; a worker has at most so many results of one step."""
        with self._lock:
            return sum(operation.pieces for operation in self._operations.values())

    def held_bytes(self) -> int:
        """Bytes of pushes and results that are kept."""
        with self._lock:
            pieces = self._pieces.values()
            steps = [step for piece in pieces for step in piece.steps.values()]
            pushed = sum(part.nbytes for step in steps for part in step.parts.values())
            results = [result for piece in pieces for _, result in piece.results.values()]
            return pushed + sum(result.nbytes for result in results)

    def arrive(self, worker: int) -> None:
        """A worker begins a stream: it declares its operations from the first on."""
        self.leave(worker)
        with self._lock:
            self._declared[worker] = []
            for piece in self._pieces.values():
                for step in piece.steps.values():  # what its earlier process asked for
                    step.asked = {each for each in step.asked if each[0] != worker}

    def leave(self, worker: int) -> None:
        """A worker is gone."""
        with self._lock:
            self._enter(worker, 0)

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
            declared = self._declared[worker]
            if message.index != len(declared):
                text = f"operation {message.index} is declared where {len(declared)} is next"
                raise PushError(text)
            is_new = operation.name not in self._operations
            if is_new and len(self._operations) == MAX_OPERATIONS:
                raise PushError(f"there are {MAX_OPERATIONS} operations already")
            if any(operation.name == other.name for other in declared):
                raise PushError(f"{operation.name} is declared twice")
            known = self._operations.setdefault(operation.name, operation)
            if operation != known:
                raise PushError(_difference(known, operation))
            declared.append(known)

    def push(self, worker: int, header: Header, payload: memoryview) -> None:
        """Takes a worker's piece of a step; the last one's brings the result to all who asked.

        What a worker has pushed before changes nothing; if there is a result of it, the worker
        gets it again. A worker that is no contributor only asks for the result.

        Raises:
          PushError: unknown operation or piece, wrong size, strange contributors, or a step that
            is over or too far.
        """
        with self._lock:
            operation = self._find(worker, header)
            contributors = self._contributors(header)
            _check_size(operation, worker, contributors, header, payload)
            if header.view:
                if header.view < self._views[worker]:
                    return
                self._enter(worker, header.view)
            key = header.view, operation.name, header.piece
            piece = self._pieces.setdefault(key, _Piece())
            if header.step <= piece.done:
                self._answer_again(worker, header, piece)
                return
            step = _open(operation, piece, header.step, contributors)
            step.asked.add((worker, header.operation))
            if worker in contributors and worker not in step.parts:
                step.parts[worker] = payload
                if header.view:
                    self._figures.pushed(worker, time.monotonic() - step.first_at)
            if len(step.parts) < len(contributors) or step.is_reducing:
                return
            step.is_reducing = True
        self._finish(operation, piece, header, step)

    def _enter(self, worker: int, view: int) -> None:
        """Forgets the view that a worker was in if nobody else is."""
        left, self._views[worker] = self._views[worker], view
        if left and left not in self._views:
            self._pieces = {key: each for key, each in self._pieces.items() if key[0] != left}

    def _finish(self, operation: Operation, piece: _Piece, header: Header, step: _Step) -> None:
        result = self._reduce(operation, [step.parts[i] for i in step.contributors])
        with self._lock:  # of a view that is over by now nobody takes the result any more
            del piece.steps[header.step]
            piece.done = header.step
            piece.results[header.step] = header.contributors, result
            while len(piece.results) > self._kept_steps:
                piece.results.popitem(last=False)
            asked = sorted(step.asked)
        if header.view:
            self._figures.made(header.step)
        frames: dict[int, bytes] = {}  # those of workers that gave the operation the same index
        for worker, index in asked:
            if index not in frames:
                frames[index] = join_frame(_answer(header, index), result)
            self._deliver(worker, frames[index])

    def _answer_again(self, worker: int, header: Header, piece: _Piece) -> None:
        answer = _answer(header, header.operation)
        if header.step in piece.results:
            answer.contributors, result = piece.results[header.step]
            self._deliver(worker, join_frame(answer, result))
        else:
            answer.gone = True
            self._deliver(worker, join_frame(answer))

    def _find(self, worker: int, header: Header) -> Operation:
        declared = self._declared[worker]
        if header.operation >= len(declared):
            raise PushError(f"operation {header.operation} was not declared")
        operation = declared[header.operation]
        if header.piece >= operation.pieces:
            last = operation.pieces - 1
            raise PushError(f"{operation.name}: piece is {header.piece}; allowed is 0 to {last}")
        if header.step > _MOST_STEPS:
            raise PushError(f"{operation.name}: step is {header.step}; allowed is up to 2^62")
        return operation

    def _contributors(self, header: Header) -> tuple[int, ...]:
        if not header.contributors:
            return tuple(range(self._workers))
        try:
            found = groups.unpack(header.contributors, self._workers)
        except ValueError as error:
            raise PushError(f"contributors are {error}") from None
        if not found:
            raise PushError("contributors are none")
        return found


def _answer(header: Header, index: int) -> Header:
    return Header(
        step=header.step,
        operation=index,
        piece=header.piece,
        view=header.view,
        contributors=header.contributors,
    )


def _open(operation: Operation, piece: _Piece, number: int, contributors: tuple[int, ...]) -> _Step:
    """The step of a piece, which may begin now."""
    step = piece.steps.get(number)
    if step is None:
        if len(piece.steps) == _OPEN_STEPS:
            under_way = " and ".join(map(str, sorted(piece.steps)))
            raise PushError(f"{operation.name}: step is {number}; steps {under_way} are under way")
        step = piece.steps[number] = _Step(contributors)
    if step.contributors != contributors:
        raise PushError(
            f"{operation.name}: contributors of step {number} are {list(contributors)}; "
            f"others say {list(step.contributors)}"
        )
    return step


def _check_size(
    operation: Operation,
    worker: int,
    contributors: tuple[int, ...],
    header: Header,
    payload: memoryview,
) -> None:
    size = operation.piece_bytes(header.piece, worker) if worker in contributors else 0
    if payload.nbytes != size:
        raise PushError(
            f"{operation.name}: piece {header.piece} has {payload.nbytes} bytes; allowed is {size}"
        )


def _difference(others: Operation, mine: Operation) -> str:
    fields = [f.name for f in dataclasses.fields(Operation)]
    name = next(name for name in fields if getattr(others, name) != getattr(mine, name))
    here, there = getattr(mine, name), getattr(others, name)
    return f"{name} of {mine.name} is {here}, that of another worker {there}"
