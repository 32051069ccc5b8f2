"""The workers of one ps: which are connected, which have left, and when the run is over."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Sequence

from terngrad.asynchronous.messages import RunStatus
from terngrad.asynchronous.plan import Plan
from terngrad.asynchronous.row import Shard
from terngrad.asynchronous.staleness import StalenessBound
from terngrad.asynchronous.store import PushOutcome, Store
from terngrad.cluster.errors import LONGEST_REASON
from terngrad.connect.channel import Channel
from terngrad.connect.streams import GRACE_SECS
from terngrad.service.figures import Figures
from terngrad.service.messages import Call, Reply

_POLL_SECS = 0.5


class AlreadyConnectedError(Exception):
    """Another process of the same worker is connected."""


@dataclasses.dataclass(eq=False)
class WorkerStream:
    """A worker's channel, and which process and run it serves.

    Attributes:
      worker: index of the worker.
      channel: carries the calls.
      incarnation: number of the worker's process; 0 until it has entered.
      run: run that the last reply named; "" for none.
      is_pushing: whether a pushed gradient has not reached the store yet.
    """

    worker: int
    channel: Channel
    incarnation: int = 0
    run: str = ""
    is_pushing: bool = False


class Workers:
    """The workers of one ps; each has one stream that has entered.

    Attributes:
      store: the parameters.
      figures: counters of bytes and updates.
      failure: why worker 0 has begun no run; "" = it has, or may still do it.
    """

    def __init__(
        self, store: Store, workers: int, timeout_secs: float, *, holds_back: bool
    ) -> None:
        """Starts without streams.

        Args:
          store: the parameters that workers push to and pull from.
          workers: number of workers.
          timeout_secs: see `is_over`, `StalenessBound`.
          holds_back: whether this ps holds back workers that are too far ahead. Only one ps does,
            so that no worker waits twice.
        """
        self.store = store
        self.figures = Figures(workers)
        self._workers, self._timeout_secs, self._holds_back = workers, timeout_secs, holds_back
        self._bound = StalenessBound(timeout_secs)
        self._changed = threading.Condition()
        self._streams: dict[int, WorkerStream] = {}
        self._arriving: dict[int, Channel] = {}
        self._done = False  # whether a worker reported that the run has all its updates
        self._ended: set[int] = set()
        self._end: Call | None = None  # the call by which worker 0 ended the run
        self._end_at, self._left_at = 0.0, time.monotonic()
        self.failure = ""
        self._seen: set[int] = set()  # workers that have entered, and a chief that failed

    @property
    def present(self) -> list[int]:
        """The connected workers."""
        with self._changed:
            return sorted(self._streams)

    @property
    def why_over(self) -> str:
        """Why the run is over, in words."""
        if self.failure:
            return f"worker 0 failed: {self.failure}"
        end = self._end
        if end is None or end.done:
            return "the run is finished" if end else "all workers have been away for too long"
        saved = "has saved" if end.saved else "has not saved"
        return f"the chief ended the run and {saved}"

    @property
    def is_over(self) -> bool:
        """Whether no worker needs this ps any more.

        The run is over when worker 0, which saves the last checkpoint, has ended it, and all
        workers have left or `timeout_secs` have passed. A run with all its updates is also over
        when all workers have been away for `timeout_secs`.
        """
        with self._changed:
            now = time.monotonic()
            if self.failure:  # those that come later learn it, too
                all_know = len(self._seen) == self._workers and not self._streams
                return all_know or now > self._end_at + self._timeout_secs
            empty_secs = 0.0 if self._streams else now - self._left_at
            if self._end is None:
                is_done = self._done or self.store.is_finished
                return is_done and empty_secs > self._timeout_secs
            if self._streams:
                return now > self._end_at + self._timeout_secs
            # A worker that is reconnecting should still find this ps.
            return len(self._ended) == self._workers or empty_secs > GRACE_SECS

    def wait(self, secs: float) -> None:
        """Waits until a worker leaves, up to `secs`."""
        with self._changed:
            self._changed.wait(min(secs, _POLL_SECS))

    def arrive(self, worker: int, channel: Channel) -> None:
        """Notes a stream that has not entered; a worker's second one ends its first."""
        with self._changed:
            before = self._arriving.get(worker)
            self._arriving[worker] = channel
        if before:
            before.cut()

    def enter(self, stream: WorkerStream) -> None:
        """Notes a stream that has entered, perhaps another one of the same process.

        Raises:
          AlreadyConnectedError: another process of this worker is connected.
        """
        worker = stream.worker
        with self._changed:
            there = self._streams.get(worker)
            if there and there.incarnation != stream.incarnation and there.channel.is_open:
                raise AlreadyConnectedError
            self._streams[worker] = stream
            if self._arriving.get(worker) is stream.channel:
                del self._arriving[worker]
            self._ended.discard(worker)
            self._seen.add(worker)
            if worker == 0:  # it is back, so the run has not ended
                self._end, self.failure = None, ""
                self.store.resume_pushes()
        if there:
            there.channel.cut()
        if not stream.channel.is_open:
            self.leave(stream)  # the stream has ended already

    def begin(
        self,
        chief: WorkerStream,
        plan: Plan,
        shard: Shard,
        content: bytes | bytearray,
        version: int,
    ) -> None:
        """Begins a run, see `Store`; ends streams of other runs, so that the workers enter it."""
        with self._changed:
            self._done, self._end, self.failure = False, None, ""
            self._ended.clear()
        self.store.begin(plan, shard, content, version)
        with self._changed:
            others = [s for s in self._streams.values() if s.run not in ("", plan.run)]
        for other in others:
            if other is not chief:
                other.channel.cut()

    def note_end(self, stream: WorkerStream, call: Call) -> None:
        """Notes that a worker ends, and why."""
        with self._changed:
            self._ended.add(stream.worker)
            if stream.run != self.store.status.run:
                return
            self._done |= call.done
            if stream.worker == 0 and (call.done or call.stop):
                self._end, self._end_at = call, time.monotonic()
                self.store.end()

    def fail(self, worker: int, why: str) -> None:
        """Notes why worker 0 ends before it has begun or confirmed a run.

        A failure of another worker is ignored. Worker 0 may have entered by then. If a process of
        worker 0 begins a run all the same, `begin` forgets the failure, which was that of another
        process.
        """
        with self._changed:
            if worker == 0 and self.store.status.waits:
                self.failure = " ".join(why[:LONGEST_REASON].split())
                self._seen.add(0)
                self._end_at = time.monotonic()

    def pause_pushes(self, chief: WorkerStream) -> None:
        """Makes pushes wait for the end of the run, unless worker 0 has left."""
        with self._changed:
            if self._streams.get(0) is chief:
                self.store.pause_pushes()

    def await_turn(self, stream: WorkerStream) -> None:
        """Holds back a worker that is too far ahead, see `StalenessBound`."""
        if self._holds_back:
            channel = stream.channel
            continues = lambda: channel.is_open and not self._end and not self.store.is_finished
            secs = self._bound.wait(stream.worker, self.store.max_staleness, continues)
            self.figures.blocked(stream.worker, secs)

    def count_push(self, stream: WorkerStream, pushed: PushOutcome) -> None:
        """Counts a worker's gradient."""
        if pushed == PushOutcome.APPLIED:
            with self._changed:
                there = self._streams.get(stream.worker)
                # Nobody shall wait for a worker that has left while its push was applied.
                if there and there.incarnation == stream.incarnation:
                    self._bound.step(stream.worker)
            self.figures.updated(stream.worker)
        elif pushed == PushOutcome.DROPPED:
            self.figures.dropped(stream.worker)

    def reply(self, status: RunStatus, unreported: Sequence[int] = ()) -> Reply:
        """Returns a reply with the run's status, and with staleness not reported before."""
        end = self._end
        return Reply(
            run=status.run,
            version=status.version,
            waits=status.waits,
            finished=status.finished,
            stopped=bool(end and end.stop),
            saved=bool(end and end.saved),
            failed=self.failure,
            staleness=unreported,
        )

    def unreported(self, worker: int) -> Sequence[int]:
        """Returns staleness to report: only ps 0 reports it, to worker 0."""
        return self.store.unreported_staleness() if worker == 0 and self._holds_back else ()

    def leave(self, stream: WorkerStream) -> None:
        """Notes that a worker's stream has ended."""
        worker = stream.worker
        with self._changed:
            if self._arriving.get(worker) is stream.channel:
                del self._arriving[worker]
            if self._streams.get(worker) is stream:
                del self._streams[worker]
                self._left_at = time.monotonic()
                self._bound.leave(worker)
                if worker == 0 and self._end is None:  # it was lost before it ended the run
                    self.store.resume_pushes()
            self._changed.notify_all()
