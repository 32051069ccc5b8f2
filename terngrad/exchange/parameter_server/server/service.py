"""How a ps handles the messages of its streams, independent of the network."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Sequence

from terngrad.connect.channel import Outbox
from terngrad.coordination.coordinator import Coordinator
from terngrad.coordination.states import Rules
from terngrad.exchange.parameter_server.server.aggregator import Aggregator
from terngrad.exchange.parameter_server.server.answers import Arithmetic
from terngrad.exchange.parameter_server.server.catalogue import PushError
from terngrad.exchange.parameter_server.server.worker_registry import WorkerRegistry
from terngrad.service.figures import Figures
from terngrad.service.messages import Header, Order, Report, split_frame

_UNSENT_STEPS = 2  # steps whose results a worker may leave unread
_MAX_UNREAD = 64  # parts of a state
_UNREAD_SECS = 10.0  # for which a donor waits for a receiver that reads nothing
_UNREAD_ENTRIES = 4  # of each worker
_MAX_ORDERS, _MAX_ORDER_BYTES = 1 << 16, 1 << 26  # that a worker may leave unread
_KEPT_STEPS = 16  # results for slow workers, if a step needs fewer than all


class UnreadError(PushError):
    """A worker leaves too many messages unread."""


class Service:
    """The two streams of each worker, and the objects that handle them; any thread may call.

    Attributes:
      registry: which workers have an Exchange stream, and how the others left.
      coordinator: decides which workers train together; None except on ps 0, or where the
        coordinator moves, on the ps that its workers have chosen.
      aggregator: combines the workers' pushes.
      figures: counts of steps and bytes.
    """

    def __init__(
        self,
        ps: int,
        worker_hosts: Sequence[str],
        arithmetic: Arithmetic,
        rules: Rules,
        servers: int,
        log: Callable[[str], None] = print,
        max_bytes: int = 1 << 62,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        kept_steps: int = _KEPT_STEPS,
    ) -> None:
        """Starts without streams.

        Args:
          ps: index of this ps.
          worker_hosts: "host:port" of each worker, for messages.
          arithmetic: computes results; see `Arithmetic`.
          rules: which workers make a step.
          servers: number of ps.
          log: writes a line to the log.
          max_bytes: see `Aggregator`.
          clock: see `Coordinator`.
          wall_clock: see `Coordinator`.
          kept_steps: see `Aggregator`; none are kept where all workers make each step.
        """
        workers = len(worker_hosts)
        self._max_entries = _UNREAD_ENTRIES * workers
        self._exchanging: dict[int, Outbox] = {}
        self._coordination: dict[int, Outbox] = {}
        self._searches: dict[int, tuple[tuple[int, int], bytes]] = {}  # for a coordinator
        self._lock = threading.Lock()
        self._ps, self._servers, self._moves = ps, servers, rules.coordinator_moves
        self.registry = WorkerRegistry(worker_hosts, rules.timeout_secs, clock)
        given = rules, self._order, self._drop, log, clock, wall_clock, servers, ps
        self._make_coordinator = functools.partial(Coordinator, worker_hosts, *given)
        self.coordinator = self._make_coordinator() if ps == 0 else None
        kept = 0 if rules.needed == workers else kept_steps
        self.figures = Figures(workers)
        self.aggregator = Aggregator(
            workers,
            arithmetic,
            self._deliver,
            kept,
            self.figures,
            max_bytes,
            self._takes_pushes,
            rules.needed,
            sends_to_all=self._moves,
        )

    @property
    def outcome(self) -> str | None:
        """None while the run continues, "" when it is done, else why it failed."""
        return (self.coordinator or self.registry).outcome

    def open_exchange(self, worker: int, outbox: Outbox) -> bool:
        """Opens a worker's Exchange stream; False if the worker's last one has not ended."""
        if not self.registry.connect(worker):
            return False
        if coordinator := self.coordinator:
            coordinator.expect_workers()  # it may be lost before its coordination stream is open
        self.aggregator.connect(worker)
        self._exchanging[worker] = outbox
        if self._moves:
            self.aggregator.send_view(worker)
            with self._lock:
                searches = [*self._searches.values()]
            if searches:
                self._deliver(worker, max(searches)[1])
        return True

    def close_exchange(self, worker: int, bye: Header | None, ending: str) -> None:
        """Closes a worker's Exchange stream.

        Args:
          worker: index of the worker.
          bye: header of the worker's goodbye; None if there was none.
          ending: how the stream ended in that case.
        """
        with self._lock:
            self._exchanging.pop(worker, None)
            self._searches.pop(worker, None)
        self.aggregator.disconnect(worker)
        why = bye.failed if bye else ending
        if bye and not why and (coordinator := self.coordinator):
            coordinator.note_done()  # its coordination stream may have broken before its goodbye
        self.registry.disconnect(worker, is_done=bye is not None, why=why)

    def take(self, worker: int, outbox: Outbox, message: bytes) -> Header | None:
        """Handles a frame of an Exchange stream; returns its header if it is the goodbye.

        Args:
          worker: index of the worker.
          outbox: outbox of the stream.
          message: the frame.

        Raises:
          UnreadError: the worker does not read its results.
          ValueError: the frame is invalid.
        """
        self.figures.received(worker, len(message))
        header, payload = split_frame(message)
        if header.bye:
            return header
        if header.coordinator >= self._servers:
            allowed = f"allowed are 0 to {self._servers - 1}"
            raise PushError(f"coordinator is {header.coordinator}; {allowed}")
        if header.HasField("declared"):
            self.aggregator.declare(worker, header.declared)
        elif header.enters:
            self.aggregator.enter(worker, header)
            self._note_other_coordinator(header)
        elif header.seeks:
            self._note_search(worker, header, message)
        else:
            self.aggregator.push(worker, header, payload)
        max_frames = _UNSENT_STEPS * self.aggregator.piece_count + self._max_entries
        max_bytes = self.aggregator.max_unread(worker, _UNSENT_STEPS)
        if len(outbox) > max_frames or outbox.waiting_bytes > max_bytes:
            raise UnreadError("the worker does not read its results")
        return None

    def open_coordination(self, worker: int, outbox: Outbox) -> bool:
        """Opens a worker's coordination stream; False if the worker's last one has not ended."""
        with self._lock:
            if worker in self._coordination:
                return False
            self._coordination[worker] = outbox
            coordinator = self.coordinator = self.coordinator or self._make_coordinator()
        if self.registry.some_are_done:
            coordinator.note_done()  # the workers of another coordinator were
        coordinator.connect(worker)
        return True

    def close_coordination(self, worker: int, ending: str | None, silent_secs: float = 0.0) -> None:
        """Closes a worker's coordination stream.

        Args:
          worker: the worker.
          ending: how it ended; None if this ps ended it.
          silent_secs: for how long there has been no sign of the worker.
        """
        coordinator = self.coordinator
        if ending is not None and coordinator:
            coordinator.disconnect(worker, ending, silent_secs)
        # Before the lock: the coordinator sends orders, which take it, while it holds its own.
        has_no_workers = self._moves and coordinator is not None and coordinator.has_no_workers
        with self._lock:  # last: now the worker may open another
            self._coordination.pop(worker, None)
            if has_no_workers and not self._coordination and self.coordinator is coordinator:
                self.coordinator = None  # its workers have another; this ps still adds

    def receive(self, worker: int, message: bytes) -> None:
        """Handles a report of a coordination stream; forwards a worker's state to the receivers.

        Raises:
          ValueError: the report is invalid.
        """
        report = Report.FromString(message)
        if (coordinator := self.coordinator) is None:
            return  # the worker is about to learn that there is another one
        if report.WhichOneof("what") != "state":
            coordinator.handle(worker, report)
            return
        part = Order(state=report.state).SerializeToString()
        for receiver in coordinator.receivers(worker, report.state.view):
            outbox = self._coordination.get(receiver)
            if outbox is None:
                continue
            unread, since = len(outbox), time.monotonic()
            while len(outbox) > _MAX_UNREAD and self._takes(receiver, outbox, worker, report):
                time.sleep(0.01)  # meanwhile the donor's stream is not read
                if len(outbox) < unread:
                    unread, since = len(outbox), time.monotonic()
                elif time.monotonic() - since > _UNREAD_SECS:
                    outbox.cut()  # the worker may connect again
            outbox.put(part)

    def _takes(self, receiver: int, outbox: Outbox, donor: int, report: Report) -> bool:
        """Whether a worker still waits on the same stream for a donor's state."""
        coordinator = self.coordinator
        waiting = coordinator.receivers(donor, report.state.view) if coordinator else []
        return receiver in waiting and self._coordination.get(receiver) is outbox

    def _takes_pushes(self, worker: int, view: int) -> bool:
        coordinator = self.coordinator
        if coordinator is None or (self._moves and not coordinator.view_number):
            return True  # a worker asks this ps to coordinate, but others are in a view already
        return coordinator.takes_pushes(worker, view)

    def _note_search(self, worker: int, header: Header, frame: bytes) -> None:
        """Informs the others that a worker has lost the coordinator, and which one it asks now."""
        with self._lock:
            self._searches[worker] = (header.view, header.step), bytes(frame)
            others = [each for each in self._exchanging if each != worker]
        for each in others if self._moves else ():
            self._deliver(each, bytes(frame))

    def _note_other_coordinator(self, header: Header) -> None:
        """Ends to coordinate if a worker is in a newer view, of another ps."""
        if not self._moves or header.coordinator == self._ps:
            return
        coordinator = self.coordinator
        if coordinator and coordinator.view_number < header.view:
            with self._lock:
                self.coordinator, streams = None, [*self._coordination.values()]
            for outbox in streams:  # a worker that does not know yet may begin anew here
                outbox.cut()

    def _deliver(self, worker: int, frame: bytes) -> None:
        with self._lock:
            outbox = self._exchanging.get(worker)
        if outbox is not None:
            outbox.put(frame)
            self.figures.sent(worker, len(frame))

    def _order(self, worker: int, order: Order) -> None:
        with self._lock:
            outbox = self._coordination.get(worker)
        if outbox is not None:
            outbox.put(order.SerializeToString())
            if len(outbox) > _MAX_ORDERS or outbox.waiting_bytes > _MAX_ORDER_BYTES:
                outbox.cut()  # the worker may connect again

    def _drop(self, worker: int) -> None:
        with self._lock:
            outboxes = [self._coordination.get(worker), self._exchanging.get(worker)]
        for outbox in outboxes:
            if outbox is not None:
                outbox.cut()
