"""A worker's steps: it pushes parts and assembles results."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Collection

import numpy as np

from terngrad.coordination import groups
from terngrad.exchange.parameter_server.operations import Operation, PieceAssignment
from terngrad.exchange.parameter_server.worker.awaited_operation import (
    NO_PIECE,
    AwaitedOperation,
    Deliver,
)
from terngrad.exchange.parameter_server.worker.contributors import StepContributors
from terngrad.exchange.parameter_server.worker.servers import Servers
from terngrad.ops.packing import Packing
from terngrad.service.messages import Header, View, join_frame, split_frame


@dataclasses.dataclass(frozen=True)
class _Push:
    """This worker's part of an operation, in one step of one view."""

    declared: AwaitedOperation
    step: int
    view: int
    content: memoryview


class Steps:
    """A worker's half of its Exchange streams; any thread may call.

    Attributes:
      lock: held during each change.
      view: the current view; its number is 0 before the first.
    """

    def __init__(
        self,
        rank: int,
        servers: Servers,
        send: Callable[[int, bytes], None],
        report_ready: Callable[[int], None],
        refuse: Callable[[str], None],
        on_coordinator: Callable[[tuple[int, int], int], None] = lambda at, coordinator: None,
    ) -> None:
        """Starts without a view; steps wait for the first.

        Args:
          rank: index of this worker.
          servers: which ps are used.
          send: sends a frame to a ps if a stream is open; must not wait.
          report_ready: reports to the coordinator that this worker has the gradients of a step.
          refuse: ends the training with a reason.
          on_coordinator: called with ((view, asked), coordinator) where other workers are in a
            later view, or have lost its coordinator: the number of their view, how many
            coordinators they have asked since, and the last of these.
        """
        self.lock = threading.RLock()
        self.view = View()
        self._rank, self._servers = rank, servers
        self._send, self._refuse = send, refuse
        self._on_coordinator = on_coordinator
        self._awaited: list[AwaitedOperation] = []
        self._used = servers.used
        self._assignment = PieceAssignment(self._used)
        self._contributors: StepContributors[_Push] = StepContributors(rank, report_ready)
        self._entered: dict[int, frozenset[int]] = {}  # by ps: workers that are in the view there
        # Pushes, until all their contributors are in the view.
        self._waiting_for_entry: list[tuple[_Push, bytes]] = []
        self._interrupted = True
        self._on_interruption: Callable[[], None] | None = None  # see `delegate`
        self._moved_at = time.monotonic()  # of the last push, result or interruption

    def delegate(self, on_interruption: Callable[[], None]) -> None:
        """Lets another part of this process exchange the steps.

        Args:
          on_interruption: called, from any thread, when steps must wait for a new view; must not
            wait.
        """
        self._on_interruption = on_interruption

    @property
    def interrupted(self) -> bool:
        """Whether steps must wait for a new view."""
        with self.lock:
            return self._interrupted

    def waits(self, secs: float) -> bool:
        """Whether this worker has waited for so many seconds for a view or for results."""
        with self.lock:
            is_open = self._interrupted or any(declared.missing for declared in self._awaited)
            is_open = is_open or self._on_interruption is not None
            return is_open and time.monotonic() > self._moved_at + secs

    @property
    def has_backup_workers(self) -> bool:
        """Whether a step needs fewer workers than the view has."""
        with self.lock:
            return self._contributors.has_backup_workers

    def is_excluded(self, step: int) -> bool:
        """See `StepContributors`."""
        with self.lock:
            return self._contributors.is_excluded(step)

    def declare(
        self,
        operation: Operation,
        deliver: Deliver,
        cancel: Callable[[], None],
        packing: Packing | None = None,
    ) -> int:
        """Declares a new operation to all ps; returns its index.

        Args:
          operation: all workers must declare the operations of a family in the same order.
          deliver: called with each result, from another thread.
          cancel: called once, if no more results will arrive.
          packing: of codes that travel in the prefix code; may be None for others.
        """
        with self.lock:
            index = len(self._awaited)
            servers = self._assignment.assign(operation)
            declared = AwaitedOperation(index, operation, servers, deliver, cancel, packing)
            self._awaited.append(declared)
            for ps in range(self._servers.count):
                self._send(ps, _declaration(declared))
        return index

    def push(self, index: int, step: int, content: np.ndarray) -> None:
        """Sends this worker's part of an operation; the result is delivered later.

        In an abandoned step the result is zeros, and `commit` returns False.

        Args:
          index: index of the operation.
          step: must grow with each push of the operation in a view.
          content: any type and shape, with the number of bytes that the operation needs.
        """
        declared = self._awaited[index]
        octets = np.ascontiguousarray(content).reshape(-1).view(np.uint8).data
        with self.lock:
            is_forgotten = self._contributors.is_forgotten(step)
        if is_forgotten:
            self.interrupt()  # this worker is too far behind: it needs another's state
        with self.lock:
            self._moved_at = time.monotonic()
            is_given_up = self._interrupted
            if not is_given_up:
                push = _Push(declared, step, self.view.number, octets)
                members = groups.unpack(self.view.members)
                declared.expect(step, push.view, self._rank, members)
                contributors = declared.contributors = self._packed_contributors(step)
                if contributors is None:
                    self._contributors.wait(step, push)
                else:
                    self._contributors.report_late(step)
        if is_given_up:
            declared.deliver_nothing()
        elif contributors is not None:
            self._send_pieces(push, contributors)

    def commit(self, step: int) -> bool:
        """Ends a step; returns whether its results are valid and may change the parameters."""
        with self.lock:
            self._contributors.made(step)
            self._moved_at = time.monotonic()
            return not self._interrupted

    def takes_part(self, step: int) -> bool:
        """Whether this worker's part is in the results of a step that is not yet committed."""
        with self.lock:
            contributors = self._packed_contributors(step)
        return contributors is not None and self._rank in groups.unpack(contributors)

    def go(self, step: int, contributors: tuple[int, ...]) -> None:
        """Notes the contributors to a step, and sends the pushes that waited for them."""
        with self.lock:
            waiting = self._contributors.decide(step, contributors)
        packed = groups.pack(contributors)
        for push in waiting:
            push.declared.contributors = packed
            self._send_pieces(push, packed)

    def take(self, ps: int, message: bytes) -> None:
        """Adds a piece to the result of its operation, or notes who is in the view at a ps."""
        header, payload = split_frame(message)
        if header.enters:
            self._note_present(ps, header)
            return
        if header.seeks:
            self._on_coordinator((header.view, header.step), header.coordinator)
            return
        if header.operation >= len(self._awaited):
            return  # an earlier process of this worker declared the operation
        declared = self._awaited[header.operation]
        operation = declared.operation
        with self.lock:
            result = declared.result if declared.awaits(header) else None
        if result is None:
            return  # a duplicate, or a piece of an abandoned step
        if header.gone:
            self.interrupt()  # this worker is too far behind: it needs another's state
            return
        if header.contributors != declared.contributors:
            others, own = map(groups.unpack, (header.contributors, declared.contributors))
            self._refuse(
                f"{operation.name}: the result of step {header.step} has workers {list(others)}; "
                f"allowed are {list(own)}"
            )
            return
        contributors = groups.unpack(header.contributors)
        lacks_own = operation.leaves_out_own and self._rank in contributors
        try:
            declared.fill(header.piece, payload, result)
        except ValueError as error:
            by = [worker for worker in contributors if not (lacks_own and worker == self._rank)]
            self._refuse(
                f"{operation.name}: piece {header.piece} of the result of step {header.step}, from "
                f"ps {ps} and workers {by}, cannot be read: {error}"
            )
            return
        with self.lock:  # several ps send pieces
            if not declared.awaits(header):
                return
            declared.missing.discard(header.piece)
            self._moved_at = time.monotonic()
            declared.received += payload.nbytes
            is_whole, octets = not declared.missing, (declared.sent, declared.received)
            if is_whole:
                declared.result = None  # its memory is free as soon as the step has used it
        if is_whole:
            declared.deliver(result, len(contributors), lacks_own, octets)

    def install(self, view: View) -> None:
        """Starts a new view."""
        with self.lock:
            self.view = view
            members = groups.unpack(view.members)
            self._contributors.begin(has_backup_workers=view.needed < len(members))
            self._servers.use_all_but(groups.unpack(view.lost_ps))
            self._share_pieces()
            self._entered.clear()
            self._waiting_for_entry.clear()
            is_amid = any(d.missing for d in self._awaited)  # a step is still under way: an error
            self._interrupted = is_amid or not self._servers.reaches_used
            if not self._interrupted:
                for ps in range(self._servers.count):
                    self._send(ps, self._entry())
        if is_amid:
            self.interrupt()

    def interrupt(self) -> None:
        """Abandons the current step."""
        with self.lock:
            self._moved_at = time.monotonic()
            self._interrupted = True
            waiting = [d for d in self._awaited if d.missing]
            for declared in waiting:
                declared.missing = set()
            self._contributors.give_up()
            self._waiting_for_entry.clear()
        for declared in waiting:
            declared.deliver_nothing()
        if self._on_interruption:
            self._on_interruption()

    def declare_again(self, ps: int) -> None:
        """Declares all operations again, on a new stream to a ps."""
        with self.lock:
            for declared in self._awaited:
                self._send(ps, _declaration(declared))
            # A ps that is not used may be that of a worker which looks for the others.
            if not self._interrupted and ps not in self._used:
                self._send(ps, self._entry())

    def cancel(self) -> None:
        """Cancels all operations: no more results will arrive."""
        for declared in self._awaited:
            declared.cancel()

    def _entry(self) -> bytes:
        view = self.view
        header = Header(enters=True, view=view.number, contributors=view.members)
        header.coordinator = view.coordinator
        return join_frame(header)

    def _share_pieces(self) -> None:
        """Assigns the pieces anew if the view uses other ps than the last one."""
        if (used := self._servers.used) != self._used:
            self._used, self._assignment = used, PieceAssignment(used)
            for declared in self._awaited:
                declared.servers = self._assignment.assign(declared.operation)

    def _packed_contributors(self, step: int) -> bytes | None:
        """Returns the contributors to a step; None until they are decided."""
        if not self._contributors.has_backup_workers:
            return self.view.members
        decided = self._contributors.contributors(step)
        return None if decided is None else groups.pack(decided)

    def _note_present(self, ps: int, header: Header) -> None:
        """Notes who is in the view at a ps, and sends the pushes that have waited for them."""
        with self.lock:
            is_later = header.view > self.view.number
            if header.view != self.view.number and not is_later:
                return
        if is_later:
            self._on_coordinator((header.view, 0), header.coordinator)
            return
        with self.lock:
            present = frozenset(groups.unpack(header.contributors))
            self._entered[ps] = self._entered.get(ps, frozenset()) | present
            waiting, self._waiting_for_entry = self._waiting_for_entry, []
        for push, contributors in waiting:
            self._send_pieces(push, contributors)

    def _have_entered(self, contributors: Collection[int]) -> bool:
        """Whether all contributors are in the view at each ps that is used."""
        return all(self._entered.get(ps, frozenset()).issuperset(contributors) for ps in self._used)

    def _send_pieces(self, push: _Push, contributors: bytes) -> None:
        """Sends a push, or a request for the result; a push waits for the other contributors.

        A ps refuses it before, since it keeps nothing of a view that nobody else is in.
        """
        pushes = self._rank in (those := groups.unpack(contributors))
        with self.lock:
            if pushes and self._is_current(push) and not self._have_entered(those):
                self._waiting_for_entry.append((push, contributors))
                return
        operation = push.declared.operation
        for piece, server in enumerate(push.declared.servers):
            header = Header(
                step=push.step,
                operation=push.declared.index,
                piece=piece,
                view=push.view,
                contributors=contributors,
            )
            has_part = pushes and operation.pushes(self._rank, piece, those)
            payload = push.declared.payload(piece, push.content) if has_part else memoryview(b"")
            frame = join_frame(header, payload)
            with self.lock:  # not between the start of a stream and the declarations on it
                if not self._is_current(push):
                    return
                push.declared.sent += payload.nbytes
                self._send(server, frame)
        self._end_without_pieces(push, len(those))

    def _end_without_pieces(self, push: _Push, workers: int) -> None:
        """Ends an operation of whose result this worker gets nothing."""
        declared = push.declared
        with self.lock:
            if not self._is_current(push) or NO_PIECE not in declared.missing:
                return
            declared.missing.discard(NO_PIECE)
        declared.deliver(declared.result, workers, False, (declared.sent, 0))

    def _is_current(self, push: _Push) -> bool:
        return not self._interrupted and push.view == self.view.number


def _declaration(declared: AwaitedOperation) -> bytes:
    return join_frame(Header(declared=declared.operation.message(declared.index)))
