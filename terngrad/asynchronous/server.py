"""A ps of asynchronous training: listens, and answers each worker's calls, one at a time."""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence

from google.protobuf.message import DecodeError

from terngrad.asynchronous.copies import Sent, Shadow
from terngrad.asynchronous.messages import (
    BEGIN,
    BYE,
    ENTER,
    FETCH,
    PULL,
    PUSH,
    STATE,
    CallError,
    RunStatus,
    collect,
    exactly,
    frames,
    read_entry,
    sizes_text,
)
from terngrad.asynchronous.plan import PlanError, Proposal
from terngrad.asynchronous.store import NoSnapshotError, OtherRunError, Store
from terngrad.asynchronous.updates import GradientError
from terngrad.asynchronous.workers import AlreadyConnectedError, Workers, WorkerStream
from terngrad.cluster.addresses import name_of
from terngrad.connect.channel import Channel, ChannelEnd, Ending, FrameError
from terngrad.connect.config import ConnectConfig
from terngrad.connect.log_limiter import LogLimiter
from terngrad.connect.streams import Streams
from terngrad.service.messages import LONGEST_PUSH, Call, split_frame

_STREAM_THREADS = 2  # one reads, one answers
_POLL_SECS = 0.5
_NOTHING = Sent(b"")
_LONGEST = {ENTER: 1 << 16, BEGIN: 1 << 20}  # bytes of content
_MAX_READ = 4  # messages of a worker that are read before they are answered


class Server:
    """Serves the workers of a ps that holds parameters.

    Attributes:
      store: the parameters.
      workers: the connected ones.
    """

    def __init__(self, config: ConnectConfig, store: Store, log: LogLimiter | None = None) -> None:
        """Does not listen yet.

        Args:
          config: of this ps.
          store: the parameters; `close` writes a last snapshot of them.
          log: gets lines for the log; None = they are printed.
        """
        self.store = store
        self._hosts = hosts = config.worker_hosts
        self.workers = Workers(store, len(hosts), config.timeout_secs, holds_back=config.rank == 0)
        self._log = log or LogLimiter(print)
        self._asked_to_end = False
        self._streams = Streams(
            config,
            {"Update": self._update},
            self._log,
            longest=LONGEST_PUSH,
            threads=_STREAM_THREADS,
        )

    def start(self, address: str) -> int:
        """Listens at "host:port"; see `Streams.start`."""
        return self._streams.start(address)

    def wait(self, secs: float) -> bool:
        """Waits up to `secs` for the end of the run; returns whether the run is over.

        See `Workers.is_over`; `stop` also ends the wait.
        """
        deadline = time.monotonic() + secs
        while not self._is_over() and (left := deadline - time.monotonic()) > 0:
            self.workers.wait(left)
            self.store.retry_snapshot()
            self._log.flush()
        return self._is_over()

    def stop(self) -> None:
        """Ends `wait`; only sets a flag, since a signal handler may call it at any time."""
        self._asked_to_end = True

    def close(self) -> None:
        """Ends all streams, then writes a last snapshot."""
        self._streams.close()
        self.store.close()
        self._log.flush(is_end=True)

    def _is_over(self) -> bool:
        return self._asked_to_end or self.workers.is_over

    def _update(self, worker: int, channel: Channel) -> Sequence[Callable[[], None]]:
        """See `streams.OpenStream`."""
        self.workers.arrive(worker, channel)
        handler, requests = CallHandler(self.workers, worker, channel), _Requests()

        def answer() -> None:
            ending = self._answer(handler, channel, requests)
            requests.close()
            channel.finish(ending)

        return [lambda: self._read(handler, channel, requests), answer]

    def _read(self, handler: CallHandler, channel: Channel, requests: _Requests) -> None:
        """Reads a worker's messages, also while it waits for an answer; notes when it leaves."""
        last = None
        try:
            for message in channel:
                requests.put(message)
        except FrameError as error:
            last = error
        finally:
            self.workers.leave(handler.stream)
            requests.put(last)

    def _answer(self, handler: CallHandler, channel: Channel, requests: _Requests) -> Ending:
        """Answers a worker's calls; returns why it does so no more."""
        worker = handler.stream.worker
        refuse = functools.partial(self._refuse, channel)
        try:
            for frame in handler.replies(iter(requests)):
                channel.send(frame)
        except AlreadyConnectedError:
            return Ending(ChannelEnd.CLOSED, str(self._streams.refuse_second(worker)))
        except OtherRunError:
            if handler.stream.is_pushing:
                self.workers.figures.dropped(worker)
            return Ending(ChannelEnd.CLOSED, "another run has begun")
        except NoSnapshotError as error:
            return Ending(ChannelEnd.UNAVAILABLE, str(error))
        except (FrameError, PlanError, GradientError, CallError, DecodeError) as error:
            return refuse(f"{name_of(worker, self._hosts)}: {error}")
        except OSError:  # the worker has left
            pass
        except Exception as error:  # refused for good, since each repeated call would fail again
            with contextlib.suppress(OSError):  # the log's disk is full
                traceback.print_exc()
            return refuse(f"this ps failed: {error!r}")
        return Ending(ChannelEnd.DONE)

    def _refuse(self, channel: Channel, why: str) -> Ending:
        return Ending(ChannelEnd.REFUSED, self._streams.complain(channel, why))


class _Requests:
    """What was read of a worker and is not answered yet; one thread adds, another one reads."""

    def __init__(self) -> None:
        self._queue: queue.Queue[memoryview | FrameError | None] = queue.Queue(_MAX_READ)
        self._over = threading.Event()

    def put(self, message: memoryview | FrameError | None) -> None:
        """Waits for room. None says that nothing follows; an error, why nothing does."""
        while not self._over.is_set():
            with contextlib.suppress(queue.Full):
                self._queue.put(message, timeout=_POLL_SECS)
                return

    def close(self) -> None:
        """Lets nobody wait for room any more."""
        self._over.set()

    def __iter__(self) -> Iterator[memoryview]:
        """Yields messages; raises the error that ended them."""
        while (message := self._queue.get()) is not None:
            if isinstance(message, FrameError):
                raise message
            yield message


class CallHandler:
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
          OtherRunError, AlreadyConnectedError: the worker must enter again.
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
                self._workers.note_end(self.stream, call)
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
        if call.size not in (sizes := self._sizes(call.act)):
            raise CallError(f"content: {call.size} bytes; allowed are {sizes_text([sizes])}")
        if call.act in (BEGIN, STATE) and self.stream.worker:
            raise CallError("only worker 0 may begin a run")
        if call.last and self.stream.worker:
            raise CallError("only worker 0 may end a run")

    def _sizes(self, act: int) -> range:
        """Returns the bytes that the content of a call may have."""
        if act in _LONGEST:
            return range(_LONGEST[act] + 1)
        if act == PUSH:
            return self._store.pushed_bytes(self.stream.run)
        return exactly(self._begins.state_bytes if act == STATE and self._begins else 0)

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
        self._begins = self._store.read_plan(content)
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
        self._workers.count_push(stream, pushed)
        self._workers.await_turn(stream)
        return self._pull(call, content)

    def _pull(self, call: Call, content: bytearray) -> Iterator[bytes]:
        del content
        status, values = self._store.pulled()
        self._check_run(status)
        code = self._store.change_code(status.run) if values else None
        sent = self._shadow.next(code, values, call.copy) if code else Sent(values)
        return self._reply(status, sent, self._workers.unreported(self.stream.worker))

    def _fetch(self, call: Call, content: bytearray) -> Iterator[bytes]:
        del content
        if call.last:
            self._workers.pause_pushes(self.stream)
        status, state = self._store.state()
        self._check_run(status)
        return self._reply(status, Sent(state), self._workers.unreported(self.stream.worker))

    def _check_run(self, status: RunStatus) -> None:
        """Raises OtherRunError for a worker of another run, which must enter this one first."""
        if not status.waits and status.run != self.stream.run:
            raise OtherRunError

    def _reply(
        self, status: RunStatus, sent: Sent = _NOTHING, unreported: Sequence[int] = ()
    ) -> Iterator[bytes]:
        """Replies with the run's status; the worker's next call concerns the run it names."""
        self.stream.run = "" if status.waits else status.run
        reply = self._workers.reply(status, unreported)
        reply.copy, reply.coded = sent.copy, sent.is_coded
        return frames(reply, sent.content)
