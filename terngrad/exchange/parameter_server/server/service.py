"""What a ps does with what its streams bring, whatever carries them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from terngrad.exchange.parameter_server.coordination.coordinator import Coordinator, Rules
from terngrad.exchange.parameter_server.server.aggregator import Aggregator, Reduce
from terngrad.exchange.parameter_server.server.attendance import Attendance
from terngrad.exchange.parameter_server.server.catalogue import PushError
from terngrad.service.figures import Figures
from terngrad.service.messages import Header, Order, Report, split_frame
from terngrad.service.streams import Outbox

_UNSENT_STEPS = 2  # results that a worker may leave unread
_MOST_UNREAD = 64  # parts of a state
_MOST_ORDERS, _MOST_ORDER_BYTES = 1 << 16, 1 << 26  # that a worker may leave unread
_KEPT_STEPS = 16  # results for workers that are behind, where a step needs fewer than all


class UnreadError(PushError):
    """Too much waits for a worker."""


class Service:
    """Two streams of each worker, and what joins them; any thread may call.

    Attributes:
      attendance: of the workers' Exchange streams.
      coordinator: of the workers; None but at ps 0.
      aggregator: of what they push.
      figures: of what passes here.
    """

    def __init__(
        self,
        ps: int,
        worker_hosts: Sequence[str],
        reduce: Reduce,
        rules: Rules,
        tell: Callable[[str], None] = print,
        most_bytes: int = 1 << 62,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        kept_steps: int = _KEPT_STEPS,
    ) -> None:
        """No stream is open.

        Args:
          ps: index of this one.
          worker_hosts: of each worker, for messages.
          reduce: see `Reduction`.
          rules: which workers make a step.
          tell: takes lines of the log.
          most_bytes: see `Aggregator`.
          clock: see `Coordinator`.
          wall_clock: see `Coordinator`.
          kept_steps: see `Aggregator`; none are kept where all workers make each step.
        """
        workers = len(worker_hosts)
        self._exchanging: dict[int, Outbox] = {}
        self._meeting: dict[int, Outbox] = {}
        self._lock = threading.Lock()
        self.attendance = Attendance(worker_hosts, rules.timeout_secs, clock)
        self.coordinator = (
            Coordinator(worker_hosts, rules, self._order, self._drop, tell, clock, wall_clock)
            if ps == 0
            else None
        )
        kept = 0 if rules.needed == workers else kept_steps
        self.figures = Figures(workers)
        self.aggregator = Aggregator(workers, reduce, self._deliver, kept, self.figures, most_bytes)

    @property
    def outcome(self) -> str | None:
        """None while the run goes on, "" when it is done, else why it ended."""
        return (self.coordinator or self.attendance).outcome

    def open_exchange(self, worker: int, outbox: Outbox) -> bool:
        """A worker's Exchange stream begins; False if the worker has one, which must end first."""
        if not self.attendance.come(worker):
            return False
        self.aggregator.leave(worker)  # its last stream's reader may have said more since it ended
        self._exchanging[worker] = outbox
        return True

    def close_exchange(self, worker: int, bye: Header | None, ending: str) -> None:
        """A worker's Exchange stream has ended.

        Args:
          worker: whose.
          bye: header of the frame with which the worker said that it ends; None if it did not.
          ending: what happened then.
        """
        with self._lock:
            self._exchanging.pop(worker, None)
        self.aggregator.leave(worker)
        why = bye.failed if bye else ending
        if self.coordinator and bye and not why:
            self.coordinator.note_done()  # its Meet stream may have broken before it said so
        self.attendance.leave(worker, is_done=bye is not None, why=why)

    def take(self, worker: int, outbox: Outbox, message: bytes) -> Header | None:
        """Takes a frame of an Exchange stream; returns its header if it is the worker's last.

        Args:
          worker: whose.
          outbox: of that stream.
          message: the frame.

        Raises:
          UnreadError: the worker does not read its results.
          ValueError: says what is wrong with the frame.
        """
        self.figures.received(worker, len(message))
        header, payload = split_frame(message)
        if header.bye:
            return header
        if header.HasField("declared"):
            self.aggregator.declare(worker, header.declared)
        else:
            self.aggregator.push(worker, header, payload)
        most_frames = _UNSENT_STEPS * self.aggregator.piece_count
        if len(outbox) > most_frames or outbox.waiting_bytes > self.aggregator.most_pushed:
            raise UnreadError("the worker does not read its results")
        return None

    def open_meeting(self, worker: int, outbox: Outbox) -> bool:
        """A worker's Meet stream begins; False if the worker has one, which must end first."""
        with self._lock:
            if worker in self._meeting:
                return False
            self._meeting[worker] = outbox
        self.coordinator.connect(worker)
        return True

    def close_meeting(self, worker: int, ending: str | None) -> None:
        """A worker's Meet stream has ended; None = because this ps ends it."""
        if ending is not None:
            self.coordinator.disconnect(worker, ending)
        with self._lock:  # only now may it come again
            self._meeting.pop(worker, None)

    def hear(self, worker: int, message: bytes) -> None:
        """Takes a report of a Meet stream; passes a worker's state on to those who need it.

        Raises:
          ValueError: says what is wrong with the report.
        """
        report = Report.FromString(message)
        if report.WhichOneof("what") != "state":
            self.coordinator.hear(worker, report)
            return
        part = Order(state=report.state).SerializeToString()
        for receiver in self.coordinator.receivers(worker, report.state.view):
            outbox = self._meeting.get(receiver)
            if outbox is None:
                continue
            while len(outbox) > _MOST_UNREAD and self._takes(receiver, outbox, worker, report):
                time.sleep(0.01)  # nothing more is read of the donor's stream meanwhile
            outbox.put(part)

    def _takes(self, receiver: int, outbox: Outbox, donor: int, report: Report) -> bool:
        """Whether a worker still waits, on the same stream, for a donor's state."""
        waiting = self.coordinator.receivers(donor, report.state.view)
        return receiver in waiting and self._meeting.get(receiver) is outbox

    def _deliver(self, worker: int, frame: bytes) -> None:
        with self._lock:
            outbox = self._exchanging.get(worker)
        if outbox is not None:
            outbox.put(frame)
            self.figures.sent(worker, len(frame))

    def _order(self, worker: int, order: Order) -> None:
        with self._lock:
            outbox = self._meeting.get(worker)
        if outbox is not None:
            outbox.put(order.SerializeToString())
            if len(outbox) > _MOST_ORDERS or outbox.waiting_bytes > _MOST_ORDER_BYTES:
                outbox.cut()  # it may connect anew

    def _drop(self, worker: int) -> None:
        with self._lock:
            outboxes = [self._meeting.get(worker), self._exchanging.get(worker)]
        for outbox in outboxes:
            if outbox is not None:
                outbox.cut()
