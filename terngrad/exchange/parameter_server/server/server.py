"""A ps: admits workers, reads what they push, and sends them the results."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence

import grpc
from google.protobuf.message import DecodeError

from terngrad.exchange.parameter_server.coordination.coordinator import Coordinator, Rules
from terngrad.exchange.parameter_server.server.attendance import Attendance
from terngrad.exchange.parameter_server.server.catalogue import PushError
from terngrad.exchange.parameter_server.server.rounds import Reduce, Rounds
from terngrad.service.figures import Figures
from terngrad.service.gate import GRACE_SECS, Gate, Listener
from terngrad.service.messages import Header, Order, Report, split_frame
from terngrad.service.security import Tls
from terngrad.service.streams import WELCOME, Outbox

_LONGEST_BEAT_SECS = 0.5
_UNSENT_STEPS = 2  # results that a worker may leave unread
_MOST_UNREAD = 64  # parts of a state
_MOST_ORDERS, _MOST_ORDER_BYTES = 1 << 16, 1 << 26  # that a worker may leave unread
_KEPT_STEPS = 16  # results for workers that are behind, where a step needs fewer than all


class Server:
    """A gRPC server of one ps.

    Attributes:
      attendance: of the workers' Exchange streams.
      coordinator: of the workers; None but at ps 0.
      rounds: what they push.
      figures: of what passes here.
    """

    def __init__(
        self,
        ps: int,
        ps_hosts: Sequence[str],
        worker_hosts: Sequence[str],
        reduce: Reduce,
        rules: Rules,
        tls: Tls | None = None,
        tell: Callable[[str], None] = print,
        most_bytes: int = 1 << 62,
    ) -> None:
        """Does not listen yet.

        Args:
          ps: index in `ps_hosts` of this one.
          ps_hosts: "host:port" of each ps; the workers must know the same.
          worker_hosts: of each worker, for messages; the workers must know the same.
          reduce: see `Reduction`.
          rules: who makes a step; a connection that is silent for the time-out is lost.
          tls: None = anybody who reaches it may connect, in plain text.
          tell: takes lines of the log.
          most_bytes: see `Rounds`.
        """
        workers = len(worker_hosts)
        self._ps = ps
        self._gate = Gate(ps, ps_hosts, worker_hosts, str(rules))
        self._admit, self._refuse = self._gate.admit, self._gate.refuse
        self._outboxes: dict[int, Outbox] = {}
        self._met: dict[int, Outbox] = {}
        self._lock = threading.Lock()
        self._beat_secs = min(_LONGEST_BEAT_SECS, rules.timeout_secs / 4)
        self._stop = threading.Event()
        self.attendance = Attendance(worker_hosts, rules.timeout_secs)
        self.coordinator = (
            Coordinator(worker_hosts, rules, self._order, self._drop, tell) if ps == 0 else None
        )
        kept = 0 if rules.needed == workers else _KEPT_STEPS
        self.figures = Figures(workers)
        self.rounds = Rounds(workers, reduce, self._deliver, kept, self.figures, most_bytes)
        methods = {"Exchange": self._exchange, "Meet": self._meet}
        self._listener = Listener(workers, rules.timeout_secs, tls, methods)

    def start(self, address: str) -> int:
        """Listens at "host:port"; see `Listener.start`."""
        return self._listener.start(address)

    @property
    def dropped(self) -> Mapping[int, int]:
        """Gradients that came too late for their step, by worker, as far as this ps knows."""
        return self.coordinator.dropped if self.coordinator else {}

    def wait(self, on_beat: Callable[[], None] = lambda: None) -> str | None:
        """Returns when the run is over: "" or why it ended; None after `stop`.

        Calls `on_beat` every now and then.
        """
        source = self.coordinator or self.attendance
        while (outcome := source.outcome) is None:
            if self._stop.wait(self._beat_secs):
                return None
            on_beat()
            if self.coordinator:
                self.coordinator.watch()
        deadline = time.monotonic() + GRACE_SECS
        while self.attendance.present and time.monotonic() < deadline:
            if self._stop.wait(self._beat_secs):
                break
        return outcome

    def stop(self) -> None:
        """Ends `wait`."""
        self._stop.set()

    def close(self) -> None:
        """Ends all streams."""
        self._listener.close()

    def _exchange(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator:
        worker = self._admit(context)
        if not self.attendance.come(worker):
            self._gate.refuse_second(context, worker)
        self.rounds.leave(worker)  # its last stream's reader may have said more since it ended
        outbox = self._outboxes[worker] = Outbox(context.cancel)
        stream = _Stream(outbox, context)
        take = functools.partial(self._take, worker, outbox)
        try:
            context.send_initial_metadata(WELCOME)
            stream.start(requests, take)
            yield from outbox
        finally:
            with self._lock:
                self._outboxes.pop(worker, None)
            bye = stream.last
            why = bye.failed if bye else stream.ending
            self.rounds.leave(worker)
            if stream.error:  # which a stream that was cut cannot be told any more
                self._gate.complain(context, stream.error)
            self.attendance.leave(worker, is_done=bye is not None, why=why)
        if stream.error:
            self._refuse(context, stream.error)

    def _meet(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator:
        worker = self._admit(context)
        if self.coordinator is None:
            self._refuse(context, f"workers meet at ps 0; this is ps {self._ps}")
        with self._lock:
            is_second = worker in self._met
            outbox = self._met.setdefault(worker, Outbox(context.cancel))
        if is_second:
            self._gate.refuse_second(context, worker)
        stream = _Stream(outbox, context)
        self.coordinator.come(worker)
        try:
            context.send_initial_metadata(WELCOME)
            stream.start(requests, functools.partial(self._hear, worker))
            yield from outbox
        finally:
            if not self._stop.is_set():  # else it is this ps that ends the stream
                self.coordinator.leave(worker, stream.ending)
            with self._lock:  # only now may it come again
                self._met.pop(worker, None)
        if stream.error:
            self._refuse(context, stream.error)

    def _take(self, worker: int, outbox: Outbox, message: bytes) -> Header | None:
        """Takes a frame; returns its header if it is the worker's last."""
        self.figures.received(worker, len(message))
        header, payload = split_frame(message)
        if header.bye:
            return header
        if header.HasField("declared"):
            self.rounds.declare(worker, header.declared)
        else:
            self.rounds.push(worker, header, payload)
        most_frames = _UNSENT_STEPS * self.rounds.piece_count
        if len(outbox) > most_frames or outbox.waiting_bytes > self.rounds.most_pushed:
            raise _UnreadError("it does not take its results")
        return None

    def _hear(self, worker: int, message: bytes) -> None:
        """Takes what a worker tells; passes its state on to those who need it."""
        report = Report.FromString(message)
        if report.WhichOneof("what") != "state":
            self.coordinator.hear(worker, report)
            return
        part = Order(state=report.state).SerializeToString()
        for receiver in self.coordinator.receivers(worker, report.state.view):
            outbox = self._met.get(receiver)
            if outbox is None:
                continue
            while len(outbox) > _MOST_UNREAD and self._takes(receiver, outbox, worker, report):
                time.sleep(0.01)  # nothing more is read of the donor's stream meanwhile
            outbox.put(part)

    def _takes(self, receiver: int, outbox: Outbox, donor: int, report: Report) -> bool:
        """Whether a worker still waits, on the same stream, for a donor's state."""
        waiting = self.coordinator.receivers(donor, report.state.view)
        return receiver in waiting and self._met.get(receiver) is outbox

    def _deliver(self, worker: int, frame: bytes) -> None:
        with self._lock:
            outbox = self._outboxes.get(worker)
        if outbox is not None:
            outbox.put(frame)
            self.figures.sent(worker, len(frame))

    def _order(self, worker: int, order: Order) -> None:
        with self._lock:
            outbox = self._met.get(worker)
        if outbox is not None:
            outbox.put(order.SerializeToString())
            # Who does not read must come anew.
            if len(outbox) > _MOST_ORDERS or outbox.waiting_bytes > _MOST_ORDER_BYTES:
                outbox.cut()

    def _drop(self, worker: int) -> None:
        with self._lock:
            outboxes = [self._met.get(worker), self._outboxes.get(worker)]
        for outbox in outboxes:
            if outbox is not None:
                outbox.cut()


class _UnreadError(PushError):
    """Too much waits for a worker."""


class _Stream:
    """The reading half of a stream.

    Attributes:
      error: why nothing more is read, though it may come; "" if the stream ended.
      ending: how it ended, of a worker that did not say that it ends.
      last: header of the frame with which the worker said that it ends; None if it did not.
    """

    def __init__(self, outbox: Outbox, context: grpc.ServicerContext) -> None:
        self.error, self.ending = "", "died: its stream ended"
        self.last: Header | None = None
        self._outbox = outbox
        context.add_callback(outbox.close)

    def start(self, requests: Iterator[bytes], take: Callable[[bytes], Header | None]) -> None:
        """Takes messages until the stream ends or one is the last; then the writing half ends."""
        threading.Thread(target=self._read, args=(requests, take), daemon=True).start()

    def _read(self, requests: Iterator[bytes], take: Callable[[bytes], Header | None]) -> None:
        try:
            for message in requests:
                if last := take(message):
                    self.last = last
                    break
        except _UnreadError as error:  # what is put behind all that would not be read, either
            self._object(error)
            self._outbox.cut()
        except (ValueError, DecodeError) as error:  # frames, pushes and reports that cannot be
            self._object(error)
        except grpc.RpcError:  # the worker is gone
            pass
        except Exception as error:  # made anew, the step would fail again, and again
            self.error = f"this ps failed: {error!r}"
            self.ending = f"was refused: {self.error}"
            with contextlib.suppress(OSError):  # a full disk: then nobody is told
                traceback.print_exc()
        finally:
            self._outbox.close()

    def _object(self, error: Exception) -> None:
        """Notes that the worker sent what cannot be."""
        self.error = str(error)
        self.ending = f"sent what cannot be: {error}"
