"""What a ps of asynchronous training replies to the calls of one worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import grpc

from terngrad.asynchronous.framing import collect, frames
from terngrad.asynchronous.store import CallError, OtherRunError, Standing, facts_of
from terngrad.service.messages import Call, split_frame

if TYPE_CHECKING:
    from terngrad.asynchronous.server import Server

MORE, ENTER, BEGIN, STATE, PUSH, PULL, FETCH, BYE = range(8)  # Act, in service.proto
_LONGEST = {ENTER: 1 << 16, BEGIN: 1 << 20}  # bytes of content


class Caller:
    """A worker's stream.

    Attributes:
      worker: at its other end.
      context: of the stream.
      incarnation: of the worker's process; 0 until it has entered.
      run: whose parameters the worker knows to be here; "" for none.
      is_pushing: it hands in a gradient, which the store has not taken yet.
    """

    def __init__(
        self,
        server: Server,
        worker: int,
        context: grpc.ServicerContext,
        requests: Iterator[bytes],
    ) -> None:
        """Of a worker that was let in; nothing is read yet."""
        self._server, self._store = server, server.store
        self.worker, self.context, self._requests = worker, context, requests
        self.incarnation = 0
        self.run = ""
        self.is_pushing = False
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
            self._count[0], self.is_pushing = len(message), call.act == PUSH
            if call.act != ENTER and not self.incarnation:
                raise CallError("it calls before it enters")
            if call.act == BYE:
                self._server.part(self.worker, call, self.run)
                yield from frames(self._server.reply(self._store.standing))
                return
            if call.act not in acts:
                raise CallError(f"act is {call.act}; allowed are 1 to {BYE}")
            self._check_size(call)
            content = collect(call, first, self._requests, self._count)
            self._server.figures.add(self.worker, bytes_in=self._count[0])
            for frame in acts[call.act](call, content):
                self._server.figures.add(self.worker, bytes_out=len(frame))
                yield frame

    def _check_size(self, call: Call) -> None:
        """Before anything is allocated for the content."""
        exact = {PULL: 0, FETCH: 0, STATE: self._begins[2] if self._begins else 0}
        if call.act == PUSH:
            exact[PUSH] = self._store.pushed_bytes(self.run)
        if call.act in _LONGEST and call.size > _LONGEST[call.act]:
            raise CallError(f"{call.size} bytes; allowed are up to {_LONGEST[call.act]}")
        if call.act in exact and call.size != exact[call.act]:
            raise CallError(f"{call.size} bytes; allowed are {exact[call.act]}")
        if call.act in (BEGIN, STATE) and self.worker:
            raise CallError("worker 0 alone begins a run")
        if call.last and self.worker:
            raise CallError("worker 0 alone ends a run")

    def _enter(self, call: Call, content: bytearray) -> Iterator[bytes]:
        run, facts = facts_of(content)
        if not call.incarnation:
            raise CallError("it does not say which process it is")
        if self.incarnation not in (0, call.incarnation):
            raise CallError("it enters again as another process")
        standing = self._store.enter(self.worker, run, facts)
        if not self.incarnation:
            self.incarnation = call.incarnation
            self._server.take_seat(self)
        return self._reply(standing)

    def _begin(self, call: Call, content: bytearray) -> Iterator[bytes]:
        del call
        self._begins = self._store.expect(content)
        return self._reply(self._store.standing)

    def _state(self, call: Call, content: bytearray) -> Iterator[bytes]:
        if self._begins is None:
            raise CallError("a state without a plan")
        plan, share, _ = self._begins
        self._begins = None
        self._server.begin(self, plan, share, content, call.version)
        return self._reply(self._store.standing)

    def _push(self, call: Call, content: bytearray) -> Iterator[bytes]:
        if not call.sequence:
            raise CallError("a push without a number")
        pushed = self._store.push(
            self.run, self.worker, self.incarnation, call.sequence, call.version, content
        )
        self.is_pushing = False
        self._server.note(self.worker, pushed)
        self._server.await_turn(self)
        return self._pull(call, content)

    def _pull(self, call: Call, content: bytearray) -> Iterator[bytes]:
        del call, content
        return self._held(*self._store.pulled())

    def _fetch(self, call: Call, content: bytearray) -> Iterator[bytes]:
        del content
        if call.last:
            self._server.hold_pushes(self)
        return self._held(*self._store.state())

    def _held(self, standing: Standing, content: bytes) -> Iterator[bytes]:
        """What is held of the run that the worker is in; into another one it enters first."""
        if not standing.waits and standing.run != self.run:
            raise OtherRunError
        return self._reply(standing, content, self._server.untold(self.worker))

    def _reply(
        self, standing: Standing, content: bytes = b"", untold: Sequence[int] = ()
    ) -> Iterator[bytes]:
        """Tells where the ps stands; what comes next is of the run that this tells."""
        self.run = "" if standing.waits else standing.run
        return frames(self._server.reply(standing, untold), content)
