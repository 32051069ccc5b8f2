"""A ps of asynchronous training: hears the workers' calls, one at a time of each, and replies."""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from collections.abc import Iterator, Sequence

import grpc
from google.protobuf.message import DecodeError

from terngrad.asynchronous.bound import Bound
from terngrad.asynchronous.caller import Caller
from terngrad.asynchronous.figures import Figures
from terngrad.asynchronous.plan import Plan, PlanError
from terngrad.asynchronous.space import Share
from terngrad.asynchronous.store import CallError, OtherRunError, Pushed, Standing, Store
from terngrad.asynchronous.updates import GradientError
from terngrad.cluster.channel import name_of
from terngrad.service.gate import GRACE_SECS, Gate, Listener
from terngrad.service.messages import Call, FrameError, Reply
from terngrad.service.security import Tls
from terngrad.service.streams import WELCOME

_LOOK_SECS = 0.5


class Server:
    """A gRPC server of one ps that holds parameters.

    Attributes:
      store: the parameters.
      figures: of what passes here.
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
        """Does not listen yet.

        Args:
          ps: index in `ps_hosts` of this one.
          ps_hosts: "host:port" of each ps; the workers must know the same.
          worker_hosts: of each worker, for messages; the workers must know the same.
          store: what the workers push to and pull from; `close` keeps what is in it.
          timeout_secs: a connection that is silent for so long is lost; see `wait`, `Bound`.
          tls: None = anybody who reaches it may connect, in plain text.
        """
        self.store = store
        self.figures = Figures(len(worker_hosts))
        self._hosts, self._timeout_secs = worker_hosts, timeout_secs
        self._is_first = ps == 0
        self._gate = Gate(ps, ps_hosts, worker_hosts)
        self._bound = Bound(timeout_secs)
        self._changed = threading.Condition()
        self._seats: dict[int, Caller] = {}
        self._arriving: dict[int, grpc.ServicerContext] = {}
        self._done = self._asked_to_end = False
        self._parted: set[int] = set()
        self._end: Call | None = None  # with which worker 0 ended the run
        self._end_at, self._left_at = 0.0, time.monotonic()
        methods = {"Update": self._update}
        self._listener = Listener(len(worker_hosts), timeout_secs, tls, methods)

    def start(self, address: str) -> int:
        """Listens at "host:port"; see `Listener.start`."""
        return self._listener.start(address)

    def wait(self, secs: float) -> bool:
        """Waits at most so long for the end of the run; returns whether it has come.

        It has come when worker 0, which saves the last checkpoint, has said that it ends it, and
        all workers have left, or take `timeout_secs` for that. A run that has its updates also ends
        when all workers, worker 0 too, have been away for so long.
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
        self._listener.close()
        self.store.keep()

    @property
    def present(self) -> list[int]:
        """Workers that are here."""
        with self._changed:
            return sorted(self._seats)

    @property
    def why_over(self) -> str:
        """What `wait` waits for, in words."""
        end = self._end
        if end is None or end.done:
            return "the run has come to its end" if end else "the workers stay away"
        saved = "has saved" if end.saved else "has not saved"
        return f"the chief ended the run, and {saved}"

    def _is_over(self) -> bool:
        if self._asked_to_end:
            return True
        now = time.monotonic()
        empty_secs = 0.0 if self._seats else now - self._left_at
        if self._end is None:
            is_done = self._done or self.store.is_finished
            return is_done and empty_secs > self._timeout_secs
        if self._seats:
            return now > self._end_at + self._timeout_secs
        # Who is only just looking for this ps again should still find it.
        return len(self._parted) == len(self._hosts) or empty_secs > GRACE_SECS

    def _update(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        worker = self._gate.admit(context)
        self._arrive(worker, context)
        context.send_initial_metadata(WELCOME)
        caller = Caller(self, worker, context, requests)
        try:
            yield from caller.replies()
        except _HereAlreadyError:
            self._gate.refuse_second(context, worker)
        except OtherRunError:
            self.figures.add(worker, dropped=int(caller.is_pushing))
            context.abort(grpc.StatusCode.ABORTED, "another run has begun")
        except (FrameError, PlanError, GradientError, CallError, DecodeError) as error:
            self._gate.refuse(context, f"{name_of(worker, self._hosts)}: {error}")
        except grpc.RpcError:  # the worker is gone
            return
        except Exception as error:  # called again, it would fail again, and again
            with contextlib.suppress(OSError):  # a full disk: then nobody is told
                traceback.print_exc()
            self._gate.refuse(context, f"this ps failed: {error!r}")

    def _arrive(self, worker: int, context: grpc.ServicerContext) -> None:
        """A stream that has not entered yet; a worker has one, or some could take all places."""
        with self._changed:
            before = self._arriving.get(worker)
            self._arriving[worker] = context
        if before:
            before.cancel()

    def take_seat(self, caller: Caller) -> None:
        """A worker's process has come, perhaps on a new stream; raises if another one is here."""
        worker = caller.worker
        with self._changed:
            there = self._seats.get(worker)
            if there and there.incarnation != caller.incarnation and there.context.is_active():
                raise _HereAlreadyError
            self._seats[worker] = caller
            if self._arriving.get(worker) is caller.context:
                del self._arriving[worker]
            self._parted.discard(worker)
            if worker == 0:  # so that it has not ended
                self._end = None
                self.store.go_on()
        if there:
            there.context.cancel()
        if not caller.context.add_callback(lambda: self._leave_seat(caller)):
            self._leave_seat(caller)  # it has ended already

    def begin(
        self,
        chief: Caller,
        plan: Plan,
        share: Share,
        content: bytes | bytearray,
        version: int,
    ) -> None:
        """Begins a run, see `Store`; ends streams of workers in another, so that they enter it."""
        with self._changed:
            self._done, self._end = False, None
            self._parted.clear()
        self.store.begin(plan, share, content, version)
        with self._changed:
            others = [c for c in self._seats.values() if c.run not in ("", plan.run)]
        for other in {*others} - {chief}:
            other.context.cancel()

    def part(self, worker: int, call: Call, run: str) -> None:
        """A worker, which was in `run`, says why it ends."""
        with self._changed:
            self._parted.add(worker)
            if run != self.store.standing.run:
                return
            self._done |= call.done
            if worker == 0 and (call.done or call.stop):
                self._end, self._end_at = call, time.monotonic()
                self.store.end()

    def hold_pushes(self, chief: Caller) -> None:
        """Lets pushes wait for the end of the run, unless worker 0 has gone by now."""
        with self._changed:
            if self._seats.get(0) is chief:
                self.store.hold_pushes()

    def await_turn(self, caller: Caller) -> None:
        """Holds a worker back that is too far ahead; ps 0 alone does, so that none waits twice."""
        if self._is_first:
            is_here = caller.context.is_active
            goes_on = lambda: is_here() and not self._end and not self.store.is_finished
            secs = self._bound.wait(caller.worker, self.store.max_staleness, goes_on)
            self.figures.add(caller.worker, held_secs=secs)

    def note(self, worker: int, pushed: Pushed) -> None:
        """Counts a worker's gradient."""
        if pushed == Pushed.APPLIED:
            self._bound.step(worker)
            self.figures.add(worker, updates=1)
        elif pushed == Pushed.DROPPED:
            self.figures.add(worker, dropped=1)

    def untold(self, worker: int) -> Sequence[int]:
        """Staleness of updates, for worker 0, which has not heard of it yet."""
        return self.store.untold_staleness() if worker == 0 and self._is_first else ()

    def reply(self, standing: Standing, untold: Sequence[int] = ()) -> Reply:
        """Tells a worker where this ps stands."""
        end = self._end
        return Reply(
            run=standing.run,
            version=standing.version,
            waits=standing.waits,
            finished=standing.finished,
            stopped=bool(end and end.stop),
            saved=bool(end and end.saved),
            staleness=untold,
        )

    def _leave_seat(self, caller: Caller) -> None:
        worker = caller.worker
        with self._changed:
            if self._seats.get(worker) is caller:
                del self._seats[worker]
                self._left_at = time.monotonic()
                self._bound.leave(worker)
                if worker == 0 and self._end is None:  # before it could say that it has saved
                    self.store.go_on()
            self._changed.notify_all()


class _HereAlreadyError(Exception):
    """Another process says to be the same worker."""
