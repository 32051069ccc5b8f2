"""A ps of asynchronous training: hears the workers' calls, one at a time of each, and replies."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent import futures

import grpc
from google.protobuf.message import DecodeError

from terngrad.exchange.channel import name_of
from terngrad.exchange.parameter_server.asynchronous.bound import Bound
from terngrad.exchange.parameter_server.asynchronous.caller import Caller
from terngrad.exchange.parameter_server.asynchronous.plan import PlanError
from terngrad.exchange.parameter_server.asynchronous.store import CallError, Store
from terngrad.exchange.parameter_server.asynchronous.updates import GradientError
from terngrad.exchange.parameter_server.gate import Gate, listen
from terngrad.exchange.parameter_server.messages import (
    SERVICE,
    Call,
    FrameError,
    Reply,
)
from terngrad.exchange.parameter_server.security import Tls
from terngrad.exchange.parameter_server.streams import WELCOME, identity, server_options

_SPARE_STREAMS = 16  # for those who are to be refused
_END_SECS = 2.0
_LOOK_SECS = 0.5


class Server:
    """A gRPC server of one ps that holds parameters.

    Attributes:
      store: the parameters.
      bytes_in, bytes_out: of each worker, since the start.
    """

    def __init__(
        self,
        ps: int,
        ps_hosts: Sequence[str],
        worker_hosts: Sequence[str],
        store: Store,
        timeout_secs: float,
        tls: Tls | None = None,
    ) -> None:
        """Does not listen yet; for the arguments see the synchronous `Server`."""
        self.store = store
        self.bytes_in, self.bytes_out = [0] * len(worker_hosts), [0] * len(worker_hosts)
        self._hosts, self._tls, self._timeout_secs = worker_hosts, tls, timeout_secs
        self._is_first = ps == 0
        self._gate = Gate(ps, ps_hosts, worker_hosts)
        self._bound = Bound(timeout_secs)
        self._changed = threading.Condition()
        self._seats: dict[int, tuple[int, grpc.ServicerContext]] = {}
        self._done = self._stopped = self._chief_done = self._asked_to_end = False
        self._left_at = 0.0
        streams = len(worker_hosts) + _SPARE_STREAMS
        self._server = grpc.server(
            futures.ThreadPoolExecutor(streams),
            options=server_options(timeout_secs),
            maximum_concurrent_rpcs=streams,
        )
        handler = grpc.stream_stream_rpc_method_handler(self._update, identity, identity)
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(SERVICE, {"Update": handler})]
        )

    def start(self, address: str) -> int:
        """Listens at "host:port"; see `listen`."""
        return listen(self._server, address, self._tls)

    def wait(self, secs: float) -> bool:
        """Waits at most so long for the end of the run; returns whether it has come.

        A run that is finished has come to its end when all workers have left and worker 0, which
        saves the last checkpoint, was among them or stays away for `timeout_secs`.
        """
        deadline = time.monotonic() + secs
        with self._changed:
            while not self._is_over() and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(min(left, _LOOK_SECS))
            return self._is_over()

    def stop(self) -> None:
        """Ends `wait`; only sets a flag, since a signal may call it at any time."""
        self._asked_to_end = True

    def close(self) -> None:
        """Ends all streams; then keeps what was not kept yet."""
        self._server.stop(_END_SECS).wait()
        self.store.keep()

    @property
    def present(self) -> list[int]:
        """Workers that are here."""
        with self._changed:
            return sorted(self._seats)

    def _is_over(self) -> bool:
        if self._asked_to_end:
            return True
        if self._seats or not (self._done or self._stopped or self.store.is_finished):
            return False
        return self._chief_done or time.monotonic() > self._left_at + self._timeout_secs

    def _update(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        worker = self._gate.admit(context)
        context.send_initial_metadata(WELCOME)
        try:
            yield from Caller(self, worker, context, requests).replies()
        except _HereAlreadyError:
            text = f"{name_of(worker, self._hosts)} is here already"
            self._gate.refuse(context, text, grpc.StatusCode.ALREADY_EXISTS)
        except (FrameError, PlanError, GradientError, CallError, DecodeError) as error:
            self._gate.refuse(context, f"{name_of(worker, self._hosts)}: {error}")
        except grpc.RpcError:  # the worker is gone
            return

    def take_seat(self, worker: int, incarnation: int, context: grpc.ServicerContext) -> None:
        """A worker's process has come, perhaps on a new stream; raises if another one is here."""
        with self._changed:
            there = self._seats.get(worker)
            if there and there[0] != incarnation and there[1].is_active():
                raise _HereAlreadyError
            self._seats[worker] = incarnation, context
        if there:
            there[1].cancel()
        if not context.add_callback(lambda: self._leave_seat(worker, context)):
            self._leave_seat(worker, context)  # it has ended already

    def begin_anew(self, context: grpc.ServicerContext) -> None:
        """A run has begun: the others' streams end, so that they enter it."""
        with self._changed:
            self._done = self._stopped = self._chief_done = False
            others = [c for _, c in self._seats.values() if c is not context]
        for other in others:
            other.cancel()

    def part(self, worker: int, call: Call) -> None:
        """A worker says why it ends."""
        with self._changed:
            self._done |= call.done
            if worker == 0:
                self._stopped |= call.stop
                self._chief_done |= call.done or call.stop

    def await_turn(self, worker: int, context: grpc.ServicerContext) -> None:
        """Holds a worker back that is too far ahead; ps 0 alone does, so that none waits twice."""
        if self._is_first:
            goes_on = lambda: (
                context.is_active() and not self._stopped and not self.store.is_finished
            )
            self._bound.wait(worker, self.store.max_staleness, goes_on)

    def note_step(self, worker: int) -> None:
        """A worker's gradient was applied."""
        self._bound.step(worker)

    def standing_reply(self, worker: int) -> Reply:
        """A reply without content."""
        run, version, waits = self.store.standing
        over = self.store.is_finished or self._done
        untold = self.store.untold_staleness() if worker == 0 and self._is_first else ()
        return Reply(
            run=run,
            version=version,
            waits=waits,
            finished=over,
            stopped=self._stopped,
            staleness=untold,
        )

    def _leave_seat(self, worker: int, context: grpc.ServicerContext) -> None:
        with self._changed:
            if worker in self._seats and self._seats[worker][1] is context:
                del self._seats[worker]
                self._left_at = time.monotonic()
                self._bound.leave(worker)
            self._changed.notify_all()


class _HereAlreadyError(Exception):
    """Another process says to be the same worker."""
