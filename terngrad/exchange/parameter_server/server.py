"""A ps: admits workers, reads what they push, and sends them the results."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures

import grpc
from google.protobuf.message import DecodeError

from terngrad.exchange.channel import name_of
from terngrad.exchange.parameter_server.attendance import Attendance
from terngrad.exchange.parameter_server.gate import Gate, listen
from terngrad.exchange.parameter_server.messages import (
    SERVICE,
    FrameError,
    Word,
    split_frame,
)
from terngrad.exchange.parameter_server.relay import Relay, RelayError
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
_UNSENT_STEPS = 2  # results that a worker may leave unread


class Server:
    """A gRPC server of one ps."""

    def __init__(
        self,
        ps: int,
        ps_hosts: Sequence[str],
        worker_hosts: Sequence[str],
        reduce: Reduce,
        timeout_secs: float,
        tls: Tls | None = None,
    ) -> None:
        """Does not listen yet.

        Args:
          ps: index in `ps_hosts` of this one.
          ps_hosts: "host:port" of each ps; the workers must know the same.
          worker_hosts: of each worker, for messages; the workers must know the same.
          reduce: see `Reduction`.
          timeout_secs: a connection that is silent for so long is lost.
          tls: None = anybody who reaches it may connect, in plain text.
        """
        workers = len(worker_hosts)
        self.attendance = Attendance(worker_hosts)
        self._worker_hosts = worker_hosts
        self._tls = tls
        self._gate = Gate(ps, ps_hosts, worker_hosts)
        self._admit, self._refuse = self._gate.admit, self._gate.refuse
        self._outboxes: dict[int, Outbox] = {}
        self._relay = Relay(workers)
        self._met: set[int] = set()
        self._lock = threading.Lock()
        self.rounds = Rounds(workers, reduce, self._deliver)
        streams = 2 * workers + _SPARE_STREAMS
        self._server = grpc.server(
            futures.ThreadPoolExecutor(streams),
            options=server_options(timeout_secs),
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

    def close(self) -> None:
        """Ends all streams."""
        self._server.stop(_END_SECS).wait()

    def _exchange(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator:
        worker = self._admit(context)
        if not self.attendance.come(worker):
            self._refuse(context, f"{self._name(worker)} is here already")
        outbox = self._outboxes[worker] = Outbox()
        self.rounds.arrive(worker)
        stream = _Stream(outbox, context)
        take = functools.partial(self._take, worker, outbox)
        try:
            context.send_initial_metadata(WELCOME)
            stream.start(requests, take)
            yield from outbox
        finally:
            self._part(worker, stream)
        if stream.error:
            self._refuse(context, stream.error)

    def _part(self, worker: int, stream: _Stream) -> None:
        with self._lock:
            self._outboxes.pop(worker, None)
        why = f"sent what cannot be: {stream.error}" if stream.error else "died: its stream ended"
        self.attendance.leave(worker, "" if stream.said_bye else why)

    def _meet(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator:
        worker = self._admit(context)
        with self._lock:
            if worker in self._met:
                self._refuse(context, f"{self._name(worker)} is here already")
            self._met.add(worker)
        outbox = self._relay.come(worker)
        stream = _Stream(outbox, context)

        hear = lambda message: self._relay.pass_on(worker, Word.FromString(message))
        try:
            context.send_initial_metadata(WELCOME)
            stream.start(requests, hear)
            yield from outbox
        finally:
            with self._lock:
                self._met.discard(worker)
            self._relay.go(worker)
        if stream.error:
            self._refuse(context, stream.error)

    def _take(self, worker: int, outbox: Outbox, message: bytes) -> bool:
        """Takes a frame; returns whether it is the worker's last."""
        header, payload = split_frame(message)
        if header.bye:
            return True
        if header.HasField("declared"):
            self.rounds.declare(worker, header.declared)
        else:
            self.rounds.push(worker, header, payload)
        if len(outbox) > _UNSENT_STEPS * self.rounds.piece_count:
            raise PushError("it does not take its results")
        return False

    def _deliver(self, worker: int, frame: bytes) -> None:
        with self._lock:
            outbox = self._outboxes.get(worker)
        if outbox is not None:
            outbox.put(frame)

    def _name(self, worker: int) -> str:
        return name_of(worker, self._worker_hosts)


class _Stream:
    """The reading half of a stream.

    Attributes:
      error: what came that cannot be; "" if nothing.
      said_bye: the worker said that it ends.
    """

    def __init__(self, outbox: Outbox, context: grpc.ServicerContext) -> None:
        self.error = ""
        self.said_bye = False
        self._outbox = outbox
        context.add_callback(outbox.close)

    def start(self, requests: Iterator[bytes], take: Callable[[bytes], bool | None]) -> None:
        """Takes messages until the stream ends or one is the last; then the writing half ends."""
        threading.Thread(target=self._read, args=(requests, take), daemon=True).start()

    def _read(self, requests: Iterator[bytes], take: Callable[[bytes], bool | None]) -> None:
        try:
            for message in requests:
                if take(message):
                    self.said_bye = True
                    break
        except (FrameError, PushError, RelayError, DecodeError) as error:
            self.error = str(error)
        except grpc.RpcError:  # the worker is gone
            pass
        finally:
            self._outbox.close()
