"""Combines the workers' pushes: a ps collects the parts of each step and sends the results.

A ps unpacks pushed codes when they arrive, so that it refuses the worker that sent invalid ones,
and no other. Between two workers it passes them on packed: the receiver unpacks them.

Memory is bounded. For each piece a ps holds the pushes of at most two steps, and as many results as
slow workers may still need. Each worker's pushes have a share of a limit; results are kept while
there is room beside them. The results that a worker has not read are limited, too, see
`max_unread`; most are in memory once, for all workers. A ps checks each push against the workers'
declarations before it keeps anything.

Views do not mix: a worker enters a view before it pushes, and its pushes count only where all
contributors have entered the same one. So nothing is kept of a view that no other worker is in.
When a worker leaves a view, its unfinished pushes are dropped. When all connected members have left
it, or no worker is left and one enters another, everything else of the view is dropped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from terngrad.coordination import groups
from terngrad.exchange.parameter_server.operations import Operation
from terngrad.exchange.parameter_server.server.answers import Answers, Arithmetic
from terngrad.exchange.parameter_server.server.catalogue import Catalogue, PushError
from terngrad.exchange.parameter_server.server.pieces import Piece, PieceStep, kept_bytes, open_step
from terngrad.exchange.parameter_server.server.worker_views import ReportedView, WorkerViews
from terngrad.service.figures import Figures
from terngrad.service.messages import Header, OperationMessage, join_frame


class Aggregator:
    """Combines the workers' pushes; any thread may call."""

    def __init__(
        self,
        workers: int,
        arithmetic: Arithmetic,
        deliver: Callable[[int, bytes], None],
        kept_steps: int = 0,
        figures: Figures | None = None,
        max_bytes: int = 1 << 62,
        takes: Callable[[int, int], bool] | None = None,
        needed: int = 1,
        *,
        sends_to_all: bool = False,
    ) -> None:
        """Starts with no operations.

        Args:
          workers: number of workers.
          arithmetic: computes results.
          deliver: called with a worker and a frame for it; must not wait.
          kept_steps: number of steps whose results are kept for slow workers; 0 if no worker can
            be behind.
          figures: counts pushes and results.
          max_bytes: limit for pushes, of which each worker has a share. If results and pushes
            together exceed it, old results are dropped.
          takes: returns whether a worker's pushes of a view can make a step; None = all can.
          needed: number of members of a view that make a step.
          sends_to_all: whether workers that are not in a view are informed of it, too.
        """
        self._sends_to_all = sends_to_all
        self._takes = takes or (lambda worker, view: True)
        self._workers = workers
        self._arithmetic = arithmetic
        self._deliver = deliver
        self._kept_steps = kept_steps
        self._figures = figures or Figures(workers)
        self._lock = threading.Lock()
        self._max_bytes = max_bytes
        self._pushed_bytes = [0] * workers
        self._result_bytes = 0
        self._catalogue = Catalogue(workers)
        # By view, operation and index.
        self._pieces: dict[tuple[ReportedView, str, int], Piece] = {}
        self._views = WorkerViews(workers, needed)

    @property
    def piece_count(self) -> int:
        """See `Catalogue`."""
        with self._lock:
            return self._catalogue.piece_count

    @property
    def memory_bytes(self) -> int:
        """Bytes of kept pushes and results."""
        with self._lock:
            return sum(self._pushed_bytes) + self._result_bytes

    @property
    def result_bytes(self) -> int:
        """Bytes of results that are kept for workers that are behind."""
        with self._lock:
            return self._result_bytes

    @property
    def max_pushed(self) -> int:
        """Largest number of bytes of a worker's pushes."""
        return self._max_bytes // self._workers

    def max_unread(self, worker: int, steps: int) -> int:
        """Returns how many bytes of results a worker may leave unread.

        They are those of `steps` steps of what it has declared, within the limit of all pushes, or
        its share of that limit if this is more. A worker that pushes last gets a step's results
        while it pushes, and sums may have several times the bytes of its pushes.
        """
        with self._lock:
            declared = steps * self._catalogue.result_bytes(worker)
        return max(self.max_pushed, min(declared, self._max_bytes))

    def connect(self, worker: int) -> None:
        """Notes a worker's new stream; forgets what is left of its last one."""
        self.disconnect(worker)  # the last stream's reader may have pushed after its end
        with self._lock:
            self._views.connect(worker)

    def disconnect(self, worker: int) -> None:
        """Forgets a worker whose stream ended; on a new stream it declares all operations again.

        Results stay for members of its view that have not declared any operation yet.
        """
        with self._lock:
            left = self._views[worker]
            self._views.disconnect(worker)
            self._drop_pushes(worker, left)
            known, late = self._catalogue.clear(worker), self._catalogue.undeclared
            self._forget(
                lambda view, operation: (
                    operation not in known and not self._views.staying(view) & late
                )
            )
            for piece in self._pieces.values():
                for step in piece.steps.values():
                    step.asked = {each for each in step.asked if each[0] != worker}

    def enter(self, worker: int, header: Header) -> None:
        """Moves a worker to a view and sends all workers that are in it its members.

        Args:
          worker: index of the worker.
          header: names the view, and its members as contributors.

        Raises:
          PushError: the view is not later than the worker's last, or the worker is not a member.
        """
        with self._lock:
            view = ReportedView(header.view, self._contributors(header), header.coordinator)
            left = self._views[worker]
            present = self._views.enter(worker, view)
            self._drop_pushes(worker, left)
            self._forget(lambda each, operation: False)
            for each in self._views.connected if self._sends_to_all else sorted(present):
                self._deliver(each, _view_frame(view, present if each in present else ()))

    def send_view(self, worker: int) -> None:
        """Sends a worker that has connected the view which others are in, if any."""
        with self._lock:
            view = self._views.newest()
            if view.number:
                self._deliver(worker, _view_frame(view, ()))

    def declare(self, worker: int, message: OperationMessage) -> None:
        """Adds a worker's next operation; see `Catalogue`."""
        with self._lock:
            self._catalogue.declare(worker, message)

    def push(self, worker: int, header: Header, payload: memoryview) -> None:
        """Adds a worker's piece of a step; after the last one, all that asked get the result.

        A push that cannot make a step is dropped: it is of a view that the worker is not in, or
        that a contributor has left. A repeated push changes nothing; if the result is kept, the
        worker gets it again. A worker that is not a contributor only asks for the result. See
        `Answers` for what each one gets.

        Raises:
          PushError: the operation or piece is unknown, the payload or the contributors are wrong,
            too many steps are under way, or the worker's pushes exceed its share.
        """
        can_count = self._takes(worker, header.view)
        with self._lock:
            operation = self._catalogue.find(worker, header)
            if not header.view:
                raise PushError("a push without a view; views count from 1")
            contributors = self._contributors(header)
            _check_size(operation, worker, contributors, header, payload)
            view = self._views[worker]
            if not can_count or header.view != view.number:
                return
        part = payload  # opened without the lock, as that takes time
        counts = worker in contributors
        has_part = counts and operation.pushes(worker, header.piece, contributors)
        if has_part and not self._swaps(operation, contributors):
            part = self._open(operation, header, payload)
        with self._lock:
            if self._views[worker] != view:  # it has left the view meanwhile
                return
            if counts:
                if not self._views.have_all(worker, contributors):
                    return
                self._check_memory(worker, part)
            key = view, operation.name, header.piece
            piece = self._pieces.setdefault(key, Piece(view))
            if header.step <= piece.done:
                if operation.receives(worker, header.piece, contributors):
                    self._answer_again(worker, header, piece, operation, part if counts else None)
                return
            step = open_step(operation, piece, header.step, contributors)
            step.asked.add((worker, header.operation))
            if counts and worker not in step.parts:
                step.parts[worker] = part
                self._pushed_bytes[worker] += kept_bytes(part)
                late_secs = time.monotonic() - step.first_at
                self._figures.pushed(worker, header.step, late_secs)
            if len(step.parts) < len(contributors) or step.is_reducing:
                return
            step.is_reducing = True
            parts = {i: step.parts[i] for i in step.contributors}
        self._finish(operation, piece, header, step, parts)

    def _open(self, operation: Operation, header: Header, payload: memoryview) -> memoryview:
        try:
            return self._arithmetic.open(operation, header.piece, payload)
        except ValueError as error:
            raise PushError(
                f"{operation.name}: piece {header.piece} cannot be read: {error}"
            ) from None

    def _drop_pushes(self, worker: int, left: ReportedView) -> None:
        """Drops the pushes of a worker that has left a view."""
        pieces = [piece for key, piece in self._pieces.items() if key[0] == left]
        for step in (step for piece in pieces for step in piece.steps.values()):
            if worker in step.parts:
                self._pushed_bytes[worker] -= kept_bytes(step.parts.pop(worker))

    def _forget(self, is_past: Callable[[ReportedView, str], bool]) -> None:
        """Forgets the pieces of views that are over, and those whose view and operation are past.

        A view is not over while a member that has not pushed yet may still need the results of
        those that have made their last step.
        """
        is_over = lambda view: not self._views.staying(view)
        past = [key for key in self._pieces if is_over(key[0]) or is_past(*key[:2])]
        for key in past:
            piece = self._pieces.pop(key)
            self._result_bytes -= piece.drop_results(0)
            for step in piece.steps.values():
                self._release(step)

    def _release(self, step: PieceStep) -> None:
        for worker, part in step.parts.items():
            self._pushed_bytes[worker] -= kept_bytes(part)
        step.parts = {}

    def _finish(
        self,
        operation: Operation,
        piece: Piece,
        header: Header,
        step: PieceStep,
        parts: Mapping[int, memoryview],
    ) -> None:
        keeps = self._kept_steps > 0 and len(piece.view.members) > 1
        swaps = self._swaps(operation, step.contributors)
        answers = Answers(self._arithmetic, operation, parts, swaps=swaps, keeps=keeps)
        with self._lock:  # if the view is over by now, its workers ignore the result
            self._release(piece.steps.pop(header.step))
            piece.done = header.step
            is_current = self._pieces.get((piece.view, operation.name, header.piece)) is piece
            if is_current and keeps:
                self._keep(piece, header, answers.total)
            asked = sorted(step.asked)
        self._figures.made(header.step)
        frames: dict[int, bytes] = {}  # by index of the operation, which workers may share
        for worker, index in asked:
            if not operation.receives(worker, header.piece, step.contributors):
                continue
            if answers.differ(worker):
                self._deliver(worker, join_frame(_answer(header, index), answers.to(worker)))
                continue
            if index not in frames:
                frames[index] = join_frame(_answer(header, index), answers.to(worker))
            self._deliver(worker, frames[index])

    def _keep(self, piece: Piece, header: Header, result: memoryview) -> None:
        """Keeps a result for slow workers; drops the oldest ones if memory is short."""
        piece.results[header.step] = header.contributors, result
        self._result_bytes += kept_bytes(result) - piece.drop_results(self._kept_steps)
        for kept in (1, 0):
            if sum(self._pushed_bytes) + self._result_bytes > self._max_bytes:
                self._result_bytes -= sum(each.drop_results(kept) for each in self._pieces.values())

    def _answer_again(
        self,
        worker: int,
        header: Header,
        piece: Piece,
        operation: Operation,
        pushed: memoryview | None,
    ) -> None:
        """Sends a kept result; `pushed` is the repeated push of a contributor, opened."""
        answer = _answer(header, header.operation)
        if header.step in piece.results:
            answer.contributors, result = piece.results[header.step]
            if operation.leaves_out_own and pushed is not None:
                result = self._arithmetic.leave_out(operation, result, pushed)
            payload = self._arithmetic.payload(operation, result)
            self._deliver(worker, join_frame(answer, payload))
        else:
            answer.gone = True
            self._deliver(worker, join_frame(answer))

    def _swaps(self, operation: Operation, contributors: Sequence[int]) -> bool:
        """Whether two workers get each other's payloads, which then are not even opened."""
        return operation.leaves_out_own and len(contributors) == 2 and not self._kept_steps

    def _check_memory(self, worker: int, payload: memoryview) -> None:
        held, limit = self._pushed_bytes[worker], self.max_pushed
        if held + kept_bytes(payload) > limit:
            text = f"the ps holds {held / 1e6:.0f} MB of this worker's pushes"
            raise PushError(f"{text}; allowed are {limit / 1e6:.0f}: start more ps to share them")

    def _contributors(self, header: Header) -> tuple[int, ...]:
        try:
            found = groups.unpack(header.contributors, self._workers)
        except ValueError as error:
            raise PushError(f"contributors: {error}") from None
        if not found:
            raise PushError("contributors: the set is empty; a step needs at least one worker")
        return found


def _view_frame(view: ReportedView, present: Iterable[int]) -> bytes:
    return join_frame(
        Header(
            enters=True,
            view=view.number,
            contributors=groups.pack(present),
            coordinator=view.coordinator,
        )
    )


def _answer(header: Header, index: int) -> Header:
    return Header(
        step=header.step,
        operation=index,
        piece=header.piece,
        view=header.view,
        contributors=header.contributors,
    )


def _check_size(
    operation: Operation,
    worker: int,
    contributors: tuple[int, ...],
    header: Header,
    payload: memoryview,
) -> None:
    counts = worker in contributors
    has_part = counts and operation.pushes(worker, header.piece, contributors)
    limit = operation.push_size(header.piece) if has_part else 0
    least = 0 if operation.is_packed else limit
    if least <= payload.nbytes <= limit:
        return
    allowed = f"allowed are {least} to {limit}" if least < limit else f"allowed is {limit}"
    raise PushError(f"{operation.name}: piece {header.piece} has {payload.nbytes} bytes; {allowed}")
