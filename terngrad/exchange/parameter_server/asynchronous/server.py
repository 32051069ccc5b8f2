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
from terngrad.exchange.parameter_server.asynchronous.framing import collect, frames
from terngrad.exchange.parameter_server.asynchronous.plan import PlanError
from terngrad.exchange.parameter_server.asynchronous.store import CallError, Store, facts_of
from terngrad.exchange.parameter_server.asynchronous.updates import GradientError
from terngrad.exchange.parameter_server.gate import Gate, listen
from terngrad.exchange.parameter_server.messages import (
    SERVICE,
    Call,
    FrameError,
    Reply,
    split_frame,
)
from terngrad.exchange.parameter_server.security import Tls
from terngrad.exchange.parameter_server.streams import WELCOME, identity, server_options

MORE, ENTER, BEGIN, STATE, PUSH, PULL, FETCH, BYE = range(8)  # Act, in service.proto
_LONGEST = {ENTER: 1 << 16, BEGIN: 1 << 20}  # bytes of content
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
            yield from _Caller(self, worker, context, requests).replies()
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


class _Caller:
    """A worker's stream."""

    def __init__(
        self,
        server: Server,
        worker: int,
        context: grpc.ServicerContext,
        requests: Iterator[bytes],
    ) -> None:
        self._server, self._store = server, server.store
        self._worker, self._context, self._requests = worker, context, requests
        self._incarnation = 0
        self._begins = None  # plan, share and size of the state that is to come
        self._count = [0]  # bytes that came

    def replies(self) -> Iterator[bytes]:
        """Hears calls until the worker ends."""
        acts = {
            ENTER: self._enter,
            BEGIN: self._begin,
            STATE: self._state,
            PUSH: self._push,
            PULL: self._pull,
            FETCH: self._fetch,
        }
        for message in self._requests:
            call, first = split_frame(message, Call)
            self._count[0] = len(message)
            if call.act != ENTER and not self._incarnation:
                raise CallError("it calls before it enters")
            if call.act == BYE:
                self._server.part(self._worker, call)
                yield from frames(self._server.standing_reply(self._worker))
                return
            if call.act not in acts:
                raise CallError(f"act is {call.act}; allowed are 1 to {BYE}")
            self._check_size(call)
            content = collect(call, first, self._requests, self._count)
            self._server.bytes_in[self._worker] += self._count[0]
            for frame in acts[call.act](call, content):
                self._server.bytes_out[self._worker] += len(frame)
                yield frame

    def _check_size(self, call: Call) -> None:
        """Before anything is allocated for the content."""
        exact = {PUSH: self._store.pushed_bytes, PULL: 0, FETCH: 0}
        exact[STATE] = self._begins[2] if self._begins else 0
        if call.act in _LONGEST and call.size > _LONGEST[call.act]:
            raise CallError(f"{call.size} bytes; allowed are up to {_LONGEST[call.act]}")
        if call.act in exact and call.size != exact[call.act]:
            raise CallError(f"{call.size} bytes; allowed are {exact[call.act]}")
        if call.act in (BEGIN, STATE) and self._worker:
            raise CallError("worker 0 alone begins a run")

    def _enter(self, call: Call, content: bytearray) -> Iterator[bytes]:
        run, facts = facts_of(content)
        if not call.incarnation:
            raise CallError("it does not say which process it is")
        self._store.enter(self._worker, run, facts)
        if call.incarnation != self._incarnation:
            self._server.take_seat(self._worker, call.incarnation, self._context)
            self._incarnation = call.incarnation
        return frames(self._server.standing_reply(self._worker))

    def _begin(self, call: Call, content: bytearray) -> Iterator[bytes]:
        del call
        self._begins = self._store.expect(content)
        return frames(self._server.standing_reply(self._worker))

    def _state(self, call: Call, content: bytearray) -> Iterator[bytes]:
        if self._begins is None:
            raise CallError("a state without a plan")
        plan, share, _ = self._begins
        self._store.begin(plan, share, content, call.version)
        self._begins = None
        self._server.begin_anew(self._context)
        return frames(self._server.standing_reply(self._worker))

    def _push(self, call: Call, content: bytearray) -> Iterator[bytes]:
        if not call.sequence:
            raise CallError("a push without a number")
        applied = self._store.push(
            self._worker, self._incarnation, call.sequence, call.version, content
        )
        if applied:
            self._server.note_step(self._worker)
        self._server.await_turn(self._worker, self._context)
        return self._pull(call, content)

    def _pull(self, call: Call, content: bytearray) -> Iterator[bytes]:
        del call, content
        reply = self._server.standing_reply(self._worker)
        if reply.waits:
            return frames(reply)
        reply.version, values = self._store.pulled()
        return frames(reply, values)

    def _fetch(self, call: Call, content: bytearray) -> Iterator[bytes]:
        del call, content
        reply = self._server.standing_reply(self._worker)
        reply.version, values = self._store.state()
        return frames(reply, values)
