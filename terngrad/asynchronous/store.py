"""What a ps holds of a run, for any thread: applies each gradient once, and keeps snapshots."""

from __future__ import annotations

import collections
import dataclasses
import enum
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from terngrad.asynchronous import snapshots
from terngrad.asynchronous.plan import Plan, PlanError
from terngrad.asynchronous.space import Share, make_shares
from terngrad.asynchronous.staleness import Staleness
from terngrad.asynchronous.updates import Updates, state_bytes
from terngrad.cluster.channel import name_of
from terngrad.cluster.membership import difference
from terngrad.ops.kernels import Kernels
from terngrad.training.schedules import Schedule

_UNTOLD = 512  # values of staleness that wait for worker 0 to ask
# What comes of reading a text that is none of those that it should be.
_UNREADABLE = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


class CallError(ValueError):
    """Says why a worker cannot do what it asks for."""


class OtherRunError(Exception):
    """A worker has to enter anew: the run that it is in is not, or not any more, held here."""


class Standing(NamedTuple):
    """Where a ps stands.

    Attributes:
      run: whose parameters it holds; "" for none.
      version: updates that were applied.
      waits: worker 0 must first begin, or confirm, the run.
      finished: as many updates were applied as the run is to have.
    """

    run: str
    version: int
    waits: bool
    finished: bool


class Pushed(enum.Enum):
    """What became of a gradient."""

    APPLIED = 1
    KNOWN = 2  # it was applied when it came before
    DROPPED = 3  # the run has its updates, or was ended


class _Held(NamedTuple):
    """What a run is about; replaced as a whole, so that it may be read without the lock."""

    plan: Plan
    share: Share
    updates: Updates


class _Pushes(enum.Enum):
    """What is done with pushes."""

    APPLY = 1
    WAIT = 2
    DROP = 3


@dataclasses.dataclass(frozen=True)
class Keeping:
    """Where a ps keeps snapshots, and after how many updates the next; 0 = none."""

    folder: str
    steps: int


class Store:
    """The parameters of a ps, from the beginning of a run or from a snapshot."""

    def __init__(
        self,
        ps: int,
        ps_count: int,
        worker_hosts: Sequence[str],
        kernels: Kernels,
        make_schedule: Callable[[str], Schedule],
        keeping: Keeping,
        tell: Callable[[str], None],
    ) -> None:
        """Holds the newest snapshot, if there is one, for the workers of its run.

        Args:
          ps: index of this one.
          ps_count: number of them, which share the parameters.
          worker_hosts: of each worker, for messages.
          kernels: read codes.
          make_schedule: from a plan's `schedule`; ValueError says that it is none.
          keeping: of snapshots.
          tell: called with lines for the log.
        """
        self.staleness = Staleness()
        self._ps, self._ps_count, self._worker_hosts = ps, ps_count, worker_hosts
        self._kernels, self._make_schedule = kernels, make_schedule
        self._keeping, self._tell = keeping, tell
        self._lock = threading.RLock()
        self._pushes, self._pushes_changed = _Pushes.APPLY, threading.Condition(self._lock)
        self._held: _Held | None = None
        self._confirmed = False
        self._applied: dict[int, tuple[int, int]] = {}  # by worker: its process, its last push
        self._untold: collections.deque[int] = collections.deque(maxlen=_UNTOLD)
        self._kept_version = -1
        if keeping.steps:
            self._resume()

    @property
    def standing(self) -> Standing:
        """For any worker."""
        with self._lock:
            if self._held is None:
                return Standing("", 0, True, False)
            plan, version = self._held.plan, self.version
            finished = self._confirmed and version >= plan.max_steps
            return Standing(plan.run, version, not self._confirmed, finished)

    @property
    def version(self) -> int:
        """Updates that were applied."""
        held = self._held
        return held.updates.version if held else 0

    @property
    def is_finished(self) -> bool:
        """Whether as many updates were applied as the run that goes on is to have."""
        return self.standing.finished

    @property
    def max_staleness(self) -> int:
        """Of the run, -1 = no bound."""
        held = self._held
        return held.plan.max_staleness if held else -1

    def pushed_bytes(self, run: str) -> int:
        """Bytes of a gradient of a run; for the errors see `push`."""
        return self._of(run).share.pushed_bytes

    def enter(self, worker: int, run: str, facts: Mapping[str, str]) -> Standing:
        """A worker has come, which was in `run`, if it was in any.

        Raises:
          CallError: names what the worker does not have in common with the run.
        """
        with self._lock:
            plan = self._held.plan if self._held else None
            if plan and run == plan.run and not self._confirmed:
                self._confirmed = True
                self._tell(f"Run {run} goes on at step {self.version}.")
            # Worker 0 may begin another run, and then what it says holds.
            if plan and worker:
                names = name_of(0, self._worker_hosts), name_of(worker, self._worker_hosts)
                if text := difference(plan.facts, facts, *names):
                    raise CallError(text)
            return self.standing

    def expect(self, content: bytes | bytearray) -> tuple[Plan, Share, int]:
        """Reads a plan: what is to begin, this ps' share of it, and the bytes of its state.

        Raises:
          PlanError: it is none that could be followed.
        """
        plan = Plan.from_json(bytes(content))
        share = make_shares(
            plan.layout(), self._ps_count, plan.nodes, plan.statistics, plan.max_code
        )[self._ps]
        try:
            self._make_schedule(plan.schedule)
        except _UNREADABLE as error:
            raise PlanError(f"the schedule is none: {error}") from None
        return plan, share, state_bytes(plan, share)

    def begin(self, plan: Plan, share: Share, content: bytes | bytearray, version: int) -> None:
        """Begins a run with a state of the right size, in the place of any before."""
        with self._lock:
            text = f"Run {plan.run} begins at step {version}"
            if self._held:
                text += f", in the place of run {self._held.plan.run} at step {self.version}"
            self._take(plan, share, content, version)
            self._applied.clear()
            self._confirmed = True
            self._let_pushes(_Pushes.APPLY)
            self.keep()
        self._tell(f"{text}.")

    def push(
        self,
        run: str,
        worker: int,
        incarnation: int,
        sequence: int,
        version: int,
        content: bytes | bytearray,
    ) -> Pushed:
        """Applies a worker's gradient, unless it was applied before or the run has ended.

        Args:
          run: which the worker has entered.
          worker: whose it is.
          incarnation: of the worker's process.
          sequence: larger at each push of a process, the same if it is sent again.
          version: of the parameters that the gradient is of.
          content: see `Share`.

        Raises:
          CallError, GradientError: it cannot be applied.
          OtherRunError: this ps does not hold that run's parameters.
        """
        held = self._of(run)
        gradient = held.updates.check(content)
        with self._lock:
            while self._pushes == _Pushes.WAIT:
                self._pushes_changed.wait()
            if held is not self._held:
                raise OtherRunError
            process, last = self._applied.get(worker, (incarnation, 0))
            if process == incarnation and sequence <= last:
                return Pushed.KNOWN
            if self._pushes == _Pushes.DROP or self.is_finished:
                return Pushed.DROPPED
            held.updates.apply(gradient)
            self._applied[worker] = (incarnation, sequence)
            self._note(max(0, self.version - 1 - version))
            if self._keeping.steps and self.version - self._kept_version >= self._keeping.steps:
                self.keep()
            return Pushed.APPLIED

    def hold_pushes(self) -> None:
        """Lets pushes wait for `go_on` or `end`."""
        self._let_pushes(_Pushes.WAIT)

    def go_on(self) -> None:
        """Lets pushes be applied again."""
        self._let_pushes(_Pushes.APPLY)

    def end(self) -> None:
        """The run is ended, though it may not have its updates: no push is applied any more."""
        self._let_pushes(_Pushes.DROP)

    def pulled(self) -> tuple[Standing, bytes]:
        """The parameters as workers pull them; nothing while worker 0 must first come."""
        with self._lock:
            standing = self.standing
            return standing, b"" if standing.waits else self._held.updates.pulled()

    def state(self) -> tuple[Standing, bytes]:
        """Everything that belongs into a checkpoint; nothing while worker 0 must first come."""
        with self._lock:
            standing = self.standing
            return standing, b"" if standing.waits else self._held.updates.state()

    def untold_staleness(self) -> list[int]:
        """Of the updates since this was last called, or the last 512 of them."""
        with self._lock:
            found = list(self._untold)
            self._untold.clear()
            return found

    def take_staleness(self) -> Staleness:
        """Of the updates since this was last called."""
        with self._lock:
            found, self.staleness = self.staleness, Staleness()
            return found

    def keep(self) -> None:
        """Writes a snapshot, unless there is nothing new, or none are wanted."""
        with self._lock:
            held = self._held
            if not (self._keeping.steps and held and self._confirmed):
                return
            if self._kept_version == self.version:
                return
            applied = {str(worker): pair for worker, pair in self._applied.items()}
            description = {"ps": self._ps, "ps_count": self._ps_count, "applied": applied}
            description["plan"] = held.plan.to_json()
            try:
                snapshots.save(
                    self._keeping.folder, self.version, description, held.updates.state()
                )
            except OSError as error:
                self._tell(f"No snapshot of step {self.version} could be written: {error}")
            self._kept_version = self.version

    def _of(self, run: str) -> _Held:
        held = self._held
        if held is None and not run:
            raise CallError("there are no parameters to update")
        if held is None or run != held.plan.run or not self._confirmed:
            raise OtherRunError
        return held

    def _let_pushes(self, pushes: _Pushes) -> None:
        with self._lock:
            self._pushes = pushes
            self._pushes_changed.notify_all()

    def _note(self, value: int) -> None:
        self.staleness.add(value)
        self._untold.append(min(value, (1 << 32) - 1))

    def _take(self, plan: Plan, share: Share, content: bytes | bytearray, version: int) -> None:
        self._held = None  # before the next is made, so that there are never two
        updates = Updates(plan, share, self._kernels, self._make_schedule(plan.schedule))
        updates.load(content, version)
        self._held, self._kept_version = _Held(plan, share, updates), -1

    def _resume(self) -> None:
        path, description, content = snapshots.newest(self._keeping.folder, self._tell)
        if path is None:
            return
        try:
            plan, share, size = self.expect(description["plan"].encode())
            if (description["ps"], description["ps_count"]) != (self._ps, self._ps_count):
                raise PlanError(f"ps {description['ps']} of {description['ps_count']} wrote it")
            if len(content) != size:
                raise PlanError(f"{len(content)} bytes of state; allowed are {size}")
        except _UNREADABLE as error:
            self._tell(f"{path} is not used: {error}")
            return
        self._take(plan, share, content, snapshots.version_of(path))
        self._applied = {int(w): tuple(pair) for w, pair in description["applied"].items()}
        self._kept_version = self.version
        self._tell(f"Holds {path}, for the workers of its run.")


def facts_of(content: bytes | bytearray) -> tuple[str, dict[str, str]]:
    """Run and facts with which a worker enters; CallError if it is no such text."""
    try:
        said = json.loads(bytes(content))
        return str(said["run"]), {str(k): str(v) for k, v in said["facts"].items()}
    except _UNREADABLE:
        raise CallError("it enters with what is no JSON of run and facts") from None
