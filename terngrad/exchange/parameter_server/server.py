"""A ps: admits workers, reads what they push, and sends them the results."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures

import grpc
from google.protobuf.message import DecodeError

from terngrad.exchange.channel import name_of
from terngrad.exchange.parameter_server.attendance import Attendance
from terngrad.exchange.parameter_server.coordinator import Coordinator, Rules
from terngrad.exchange.parameter_server.figures import Figures
from terngrad.exchange.parameter_server.gate import Gate, listen
from terngrad.exchange.parameter_server.messages import (
    SERVICE,
    Header,
    Order,
    Report,
    split_frame,
)
from terngrad.exchange.parameter_server.rounds import PushError, Reduce, Rounds
from terngrad.exchange.parameter_server.security import Tls
from terngrad.exchange.parameter_server.streams import (
    WELCOME,
    Outbox,
    identity,
    server_options,
)

_SPARE_STREAMS = 16  # for those who are to be refused
_END_SECS = 2.0
_GRACE_SECS = 5.0  # for the workers to learn of the end, and to go
_LONGEST_BEAT_SECS = 0.5
_UNSENT_STEPS = 2  # results that a worker may leave unread
_MOST_UNREAD = 64  # parts of a state
_MOST_ORDERS = 1 << 16  # that a worker may leave unread
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
        """
        workers = len(worker_hosts)
        self._ps, self._worker_hosts = ps, worker_hosts
        self._tls = tls
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
        kept = 1 if rules.needed == workers else _KEPT_STEPS
        self.figures = Figures(workers)
        self.rounds = Rounds(workers, reduce, self._deliver, kept, self.figures)
        streams = 2 * workers + _SPARE_STREAMS
        self._server = grpc.server(
            futures.ThreadPoolExecutor(streams),
            options=server_options(rules.timeout_secs),
            maximum_concurrent_rpcs=streams,
        )
        make = grpc.stream_stream_rpc_method_handler
        handlers = {
            "Exchange": make(self._exchange, identity, identity),
            "Meet": make(self._meet, identity, identity),
        }
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(SERVICE, handlers)]
        )

    def start(self, address: str) -> int:
        """Listens at "host:port" and returns the port, one that is free for port 0.

        Raises:
          PortError: the port is taken, or the address not one of this machine's.
        """
        return listen(self._server, address, self._tls)

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
        deadline = time.monotonic() + _GRACE_SECS
        while self.attendance.present and time.monotonic() < deadline:
            if self._stop.wait(self._beat_secs):
                break
        return outcome

    def stop(self) -> None:
        """Ends `wait`."""
        self._stop.set()

    def close(self) -> None:
        """Ends all streams."""
        self._server.stop(_END_SECS).wait()

    def _exchange(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator:
        worker = self._admit(context)
        if not self.attendance.come(worker):
            self._refuse_second(context, worker)
        outbox = self._outboxes[worker] = Outbox()
        self.rounds.arrive(worker)
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
            self.attendance.leave(worker, is_done=bye is not None, why=why)
        if stream.error:
            self._refuse(context, stream.error)

    def _meet(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator:
        worker = self._admit(context)
        if self.coordinator is None:
            self._refuse(context, f"workers meet at ps 0; this is ps {self._ps}")
        with self._lock:
            is_second = worker in self._met
            outbox = self._met.setdefault(worker, Outbox())
        if is_second:
            self._refuse_second(context, worker)
        stream = _Stream(outbox, context)
        self.coordinator.come(worker)
        try:
            context.send_initial_metadata(WELCOME)
            stream.start(requests, functools.partial(self._hear, worker))
            yield from outbox
        finally:
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
        if len(outbox) > _UNSENT_STEPS * self.rounds.piece_count:
            raise PushError("it does not take its results")
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
            if len(outbox) > _MOST_ORDERS:  # it does not read: it must come anew
                outbox.close()

    def _drop(self, worker: int) -> None:
        with self._lock:
            outboxes = [self._met.get(worker), self._outboxes.get(worker)]
        for outbox in outboxes:
            if outbox is not None:
                outbox.close()

    def _refuse_second(self, context: grpc.ServicerContext, worker: int) -> None:
        """Ends a stream whose worker has one: the other's end may not have been noticed yet."""
        why = f"{name_of(worker, self._worker_hosts)} is here already"
        self._refuse(context, why, grpc.StatusCode.ALREADY_EXISTS)


class _Stream:
    """The reading half of a stream.

    Attributes:
      error: what came that cannot be; "" if nothing.
      last: header of the frame with which the worker said that it ends; None if it did not.
    """

    def __init__(self, outbox: Outbox, context: grpc.ServicerContext) -> None:
        self.error = ""
        self.last: Header | None = None
        self._outbox = outbox
        context.add_callback(outbox.close)

    @property
    def ending(self) -> str:
        """How it ended, of a worker that did not say that it ends."""
        return f"sent what cannot be: {self.error}" if self.error else "died: its stream ended"

    def start(self, requests: Iterator[bytes], take: Callable[[bytes], Header | None]) -> None:
        """Takes messages until the stream ends or one is the last; then the writing half ends."""
        threading.Thread(target=self._read, args=(requests, take), daemon=True).start()

    def _read(self, requests: Iterator[bytes], take: Callable[[bytes], Header | None]) -> None:
        try:
            for message in requests:
                if last := take(message):
                    self.last = last
                    break
        except (ValueError, DecodeError) as error:  # frames, pushes and reports that cannot be
            self.error = str(error)
        except grpc.RpcError:  # the worker is gone
            pass
        finally:
            self._outbox.close()
