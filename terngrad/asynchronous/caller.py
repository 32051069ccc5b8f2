"""A ps' replies to the calls of one worker of asynchronous training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from terngrad.asynchronous.copies import Sent, Shadow
from terngrad.asynchronous.messages import (
    BEGIN,
    BYE,
    ENTER,
    FETCH,
    PULL,
    PUSH,
    STATE,
    RunStatus,
    collect,
    frames,
)
from terngrad.asynchronous.proposal import CallError, Proposal, read_entry
from terngrad.asynchronous.store import OtherRunError
from terngrad.asynchronous.workers import Workers, WorkerStream
from terngrad.connect.channel import Channel
from terngrad.service.messages import Call, split_frame

_NOTHING = Sent(b"")
_LONGEST = {ENTER: 1 << 16, BEGIN: 1 << 20}  # bytes of content


class Caller:
    """One worker's stream of calls.

    Attributes:
      stream: of the worker.
    """

    def __init__(
        self,
        workers: Workers,
        worker: int,
        channel: Channel,
    ) -> None:
        """Serves an admitted worker; reads nothing yet."""
        self.stream = WorkerStream(worker, channel)
        self._workers, self._store, self._figures = workers, workers.store, workers.figures
        self._begins: Proposal | None = None  # the run whose state follows
        self._count = [0]  # bytes received
        self._shadow = Shadow()  # goes with the stream

    def replies(self, requests: Iterator[memoryview]) -> Iterator[bytes]:
        """Answers calls until the worker ends.

        Args:
          requests: the worker's messages.

        Raises:
          CallError, PlanError, GradientError, FrameError, DecodeError: a call is wrong.
          OtherRunError, HereAlreadyError: the worker must enter again.
        """
        acts = {
            ENTER: self._enter,
            BEGIN: self._begin,
            STATE: self._state,
            PUSH: self._push,
            PULL: self._pull,
            FETCH: self._fetch,
        }
        worker = self.stream.worker
        for message in requests:
            call, first = split_frame(message, Call)
            self._count[0], self.stream.is_pushing = len(message), call.act == PUSH
            if call.act == BYE and call.failed and not self.stream.incarnation:
                self._workers.fail(worker, call.failed)
                return
            if call.act != ENTER and not self.stream.incarnation:
                raise CallError(f"act is {call.act} in the first call; allowed is {ENTER} (ENTER)")
            if call.act == BYE:
                self._workers.part(self.stream, call)
                yield from frames(self._workers.reply(self._store.status))
                return
            if call.act not in acts:
                raise CallError(f"act is {call.act}; allowed are 1 to {BYE}")
            self._check_size(call)
            content = collect(call, first, requests, self._count)
            self._figures.received(worker, self._count[0])
            for frame in acts[call.act](call, content):
                self._figures.sent(worker, len(frame))
                yield frame

    def _check_size(self, call: Call) -> None:
        """Checks the announced size before memory is allocated for the content."""
        exact = {PULL: 0, FETCH: 0, STATE: self._begins.state_bytes if self._begins else 0}
        if call.act == PUSH:
            exact[PUSH] = self._store.pushed_bytes(self.stream.run)
        if call.act in _LONGEST and call.size > _LONGEST[call.act]:
            raise CallError(f"content: {call.size} bytes; allowed are up to {_LONGEST[call.act]}")
        if call.act in exact and call.size != exact[call.act]:
            raise CallError(f"content: {call.size} bytes; allowed are {exact[call.act]}")
        if call.act in (BEGIN, STATE) and self.stream.worker:
            raise CallError("only worker 0 may begin a run")
        if call.last and self.stream.worker:
            raise CallError("only worker 0 may end a run")

    def _enter(self, call: Call, content: bytearray) -> Iterator[bytes]:
        run, configuration = read_entry(content)
        if not call.incarnation:
            raise CallError("incarnation is 0 in ENTER; allowed are 1 and more")
        if self.stream.incarnation not in (0, call.incarnation):
            raise CallError("incarnation differs from that of the stream's first ENTER")
        status = self._store.enter(self.stream.worker, run, configuration)
        if not self.stream.incarnation:
            self.stream.incarnation = call.incarnation
            self._workers.enter(self.stream)
        return self._reply(status)

    def _begin(self, call: Call, content: bytearray) -> Iterator[bytes]:
        del call
        self._begins = self._store.expect(content)
        return self._reply(self._store.status)

    def _state(self, call: Call, content: bytearray) -> Iterator[bytes]:
        if self._begins is None:
            raise CallError("STATE without BEGIN before it")
        plan, shard, _ = self._begins
        self._begins = None
        self._workers.begin(self.stream, plan, shard, content, call.version)
        return self._reply(self._store.status)

    def _push(self, call: Call, content: bytearray) -> Iterator[bytes]:
        if not call.sequence:
            raise CallError("sequence is 0 in PUSH; allowed are 1 and more")
        stream = self.stream
        pushed = self._store.push(
            stream.run, stream.worker, stream.incarnation, call.sequence, call.version, content
        )
        stream.is_pushing = False
        self._workers.note(stream.worker, pushed)
        self._workers.await_turn(stream)
        return self._pull(call, content)

    def _pull(self, call: Call, content: bytearray) -> Iterator[bytes]:
        del content
        status, values = self._store.pulled()
        self._check_run(status)
        code = self._store.change_code(status.run) if values else None
        sent = self._shadow.next(code, values, call.copy) if code else Sent(values)
        return self._reply(status, sent, self._workers.untold(self.stream.worker))

    def _fetch(self, call: Call, content: bytearray) -> Iterator[bytes]:
        del content
        if call.last:
            self._workers.hold_pushes(self.stream)
        status, state = self._store.state()
        self._check_run(status)
        return self._reply(status, Sent(state), self._workers.untold(self.stream.worker))

    def _check_run(self, status: RunStatus) -> None:
        """Raises OtherRunError for a worker of another run, which must enter this one first."""
        if not status.waits and status.run != self.stream.run:
            raise OtherRunError

    def _reply(
        self, status: RunStatus, sent: Sent = _NOTHING, untold: Sequence[int] = ()
    ) -> Iterator[bytes]:
        """Replies with the run's status; the worker's next call concerns the run it names."""
        self.stream.run = "" if status.waits else status.run
        reply = self._workers.reply(status, untold)
        reply.copy, reply.coded = sent.copy, sent.is_coded
        return frames(reply, sent.content)
