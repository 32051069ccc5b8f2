"""The part of a run on one ps, for any thread: applies each gradient once, writes snapshots."""

from __future__ import annotations

import collections
import enum
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from terngrad.asynchronous.copies import FLOAT_BYTES, ChangeCode, change_codes
from terngrad.asynchronous.messages import CallError, RunStatus
from terngrad.asynchronous.plan import Plan, Proposal, read_proposal
from terngrad.asynchronous.row import Shard
from terngrad.asynchronous.snapshots import SnapshotManager, SnapshotSettings
from terngrad.asynchronous.staleness import Staleness
from terngrad.asynchronous.updates import Updates
from terngrad.cluster.addresses import name_of
from terngrad.cluster.membership import difference
from terngrad.ops.gradient_kernels import GradientKernels
from terngrad.training.schedules import Schedule

_SNAPSHOT_SECS = 5.0  # how long a push waits for a snapshot
_UNREPORTED = 512  # values of staleness that wait for worker 0's next call


class OtherRunError(Exception):
    """This ps does not, or no longer, hold the worker's run: the worker must enter again."""


class NoSnapshotError(Exception):
    """No update can be applied now, since no snapshot can be written; a later push may succeed."""


class PushOutcome(enum.Enum):
    """What became of a gradient."""

    APPLIED = 1
    REPEATED = 2  # an earlier copy was applied
    DROPPED = 3  # the run has all its updates, or has ended


class _CurrentRun(NamedTuple):
    """The current run; replaced as a whole, so that it may be read without the lock."""

    plan: Plan
    shard: Shard
    updates: Updates
    change_code: ChangeCode | None


class _Pushes(enum.Enum):
    """What happens to pushes."""

    APPLY = 1
    WAIT = 2
    DROP = 3


class Store:
    """The parameters of a ps, from the start of a run or from a snapshot."""

    def __init__(
        self,
        ps: int,
        ps_count: int,
        worker_hosts: Sequence[str],
        kernels: GradientKernels,
        make_schedule: Callable[[str], Schedule],
        settings: SnapshotSettings,
        log: Callable[[str], None],
    ) -> None:
        """Loads the newest snapshot, if there is one, for the workers of its run.

        Args:
          ps: index of this ps.
          ps_count: number of ps, which share the parameters.
          worker_hosts: "host:port" of each worker, for messages.
          kernels: decode gradients.
          make_schedule: reads a plan's `schedule`; raises ValueError if it cannot.
          settings: where and when to write snapshots.
          log: called with lines for the log.

        Raises:
          LookupError, OSError: see `snapshots.choose`.
        """
        self._ps, self._ps_count, self._worker_hosts = ps, ps_count, worker_hosts
        self._kernels, self._make_schedule = kernels, make_schedule
        self._snapshots, self._log = SnapshotManager(settings, ps, ps_count, log), log
        self._lock = threading.RLock()
        self._pushes, self._pushes_changed = _Pushes.APPLY, threading.Condition(self._lock)
        self._current: _CurrentRun | None = None
        self._confirmed = False
        self._applied: dict[int, tuple[int, int]] = {}  # see `Applied`
        self._staleness = Staleness()
        self._unreported: collections.deque[int] = collections.deque(maxlen=_UNREPORTED)
        if snapshot := self._snapshots.load_newest(self.read_plan):
            plan, shard, _ = snapshot.proposal
            self._load(plan, shard, snapshot.content, snapshot.version)
            self._snapshots.reset(snapshot.version)
            self._applied = dict(snapshot.applied)
            log(f"Loaded {snapshot.path}; waits for the workers of its run.")

    @property
    def status(self) -> RunStatus:
        """The status of the run."""
        with self._lock:
            if self._current is None:
                return RunStatus("", 0, True, False)
            plan, version = self._current.plan, self.version
            finished = self._confirmed and version >= plan.max_steps
            return RunStatus(plan.run, version, not self._confirmed, finished)

    @property
    def version(self) -> int:
        """Number of updates that were applied."""
        current = self._current
        return current.updates.version if current else 0

    @property
    def is_finished(self) -> bool:
        """Whether the current run has all its updates."""
        return self.status.finished

    @property
    def max_staleness(self) -> int:
        """Bound on the staleness in the run; -1 = no bound."""
        current = self._current
        return current.plan.max_staleness if current else -1

    def pushed_bytes(self, run: str) -> range:
        """Returns the bytes that a gradient of a run may have; for the errors see `push`."""
        return self._of(run).shard.pushed_bytes

    def enter(self, worker: int, run: str, configuration: Mapping[str, str]) -> RunStatus:
        """Lets a worker enter; `run` is the run that it was in before, or "".

        Raises:
          CallError: the worker's configuration differs from that of the run.
        """
        with self._lock:
            plan = self._current.plan if self._current else None
            if plan and run == plan.run and not self._confirmed:
                self._confirmed = True
                self._log(f"Run {run} continues at step {self.version}.")
            # Worker 0 may begin another run with its own configuration, also in the place of one
            # that was loaded. So the others are compared once it has begun or continued a run.
            if plan and worker and self._confirmed:
                names = name_of(0, self._worker_hosts), name_of(worker, self._worker_hosts)
                if text := difference(plan.configuration, configuration, *names):
                    raise CallError(text)
            return self.status

    def read_plan(self, content: bytes | bytearray) -> Proposal:
        """Reads the plan of a run that may begin; PlanError if it cannot be followed."""
        return read_proposal(bytes(content), self._ps, self._ps_count, self._make_schedule)

    def begin(self, plan: Plan, shard: Shard, content: bytes | bytearray, version: int) -> None:
        """Begins a run with a state of the right size; it replaces the run before.

        Raises:
          CallError: the state has values that are not finite.
        """
        if not np.isfinite(np.frombuffer(content, "<f4")).all():
            raise CallError("the state has values that are not finite")
        with self._lock:
            text = f"Run {plan.run} begins at step {version}"
            if self._current:
                text += f", in the place of run {self._current.plan.run} at step {self.version}"
            self._load(plan, shard, content, version)
            self._applied.clear()
            self._confirmed = True
            self._set_pushes(_Pushes.APPLY)
            self.save_snapshot()
        self._log(f"{text}.")

    def push(
        self,
        run: str,
        worker: int,
        incarnation: int,
        sequence: int,
        version: int,
        content: bytes | bytearray,
    ) -> PushOutcome:
        """Applies a worker's gradient, unless it was applied before or the run has ended.

        Args:
          run: the run that the worker has entered.
          worker: index of the worker.
          incarnation: number of the worker's process.
          sequence: grows with each push of a process; a repeated push has the same.
          version: version of the parameters that the gradient was computed with.
          content: the gradient, see `Shard`.

        Raises:
          CallError, GradientError: the gradient cannot be applied.
          OtherRunError: this ps does not hold that run's parameters.
          NoSnapshotError: after a wait; another update could be lost, as no snapshot is written.
        """
        current = self._of(run)
        gradient = current.updates.check(content)
        with self._lock:
            push = current, worker, incarnation, sequence
            skipped = self._outcome_if_skipped(*push)
            if skipped is None and self._snapshots.is_due(self.version):
                is_due = lambda: current is self._current and self._snapshots.is_due(self.version)
                if not self._pushes_changed.wait_for(lambda: not is_due(), _SNAPSHOT_SECS):
                    raise NoSnapshotError(self._snapshots.failure)
                skipped = self._outcome_if_skipped(*push)
            if skipped is not None:
                return skipped
            current.updates.apply(gradient)
            self._applied[worker] = (incarnation, sequence)
            self._note_staleness(max(0, self.version - 1 - version))
            if self._snapshots.is_due(self.version):
                self.save_snapshot()
            return PushOutcome.APPLIED

    def pause_pushes(self) -> None:
        """Makes pushes wait for `resume_pushes` or `end`."""
        self._set_pushes(_Pushes.WAIT)

    def resume_pushes(self) -> None:
        """Lets pushes be applied again."""
        self._set_pushes(_Pushes.APPLY)

    def end(self) -> None:
        """Ends the run, perhaps before it has all its updates; drops later pushes."""
        self._set_pushes(_Pushes.DROP)

    def pulled(self) -> tuple[RunStatus, bytes]:
        """Returns the parameters as workers pull them; no bytes while the run waits."""
        with self._lock:
            status = self.status
            return status, b"" if status.waits else self._current.updates.pulled()

    def change_code(self, run: str) -> ChangeCode | None:
        """Returns what codes changes of a run's parameters; None = they travel as `pulled`."""
        current = self._current
        return current.change_code if current and current.plan.run == run else None

    def state(self) -> tuple[RunStatus, bytes]:
        """Returns the state for a checkpoint; no bytes while the run waits."""
        with self._lock:
            status = self.status
            return status, b"" if status.waits else self._current.updates.state()

    def unreported_staleness(self) -> list[int]:
        """Returns the staleness of the updates since the last call, at most the last 512."""
        with self._lock:
            found = list(self._unreported)
            self._unreported.clear()
            return found

    def take_staleness(self) -> Staleness:
        """Returns statistics of the updates since the last call."""
        with self._lock:
            found, self._staleness = self._staleness, Staleness()
            return found

    def save_snapshot(self) -> None:
        """Writes a snapshot, unless there is nothing new or snapshots are off."""
        with self._lock:
            if self._current and self._confirmed:
                self._snapshots.save(
                    self._current.plan.to_json(), self._applied, self._current.updates
                )
                self._pushes_changed.notify_all()

    def retry_snapshot(self) -> None:
        """Writes a snapshot that could not be written before, if it is time to; call it often."""
        with self._lock:
            if self._snapshots.failure and self._snapshots.may_retry():
                self.save_snapshot()

    def close(self) -> None:
        """Writes a last snapshot, and gives back the space reserved for the next."""
        with self._lock:
            self.save_snapshot()
            self._snapshots.close()

    def _outcome_if_skipped(
        self, current: _CurrentRun, worker: int, incarnation: int, sequence: int
    ) -> PushOutcome | None:
        """Returns what becomes of a gradient that is not applied; None = it is to be applied."""
        while self._pushes == _Pushes.WAIT:
            self._pushes_changed.wait()
        if current is not self._current:
            raise OtherRunError
        process, last = self._applied.get(worker, (incarnation, 0))
        if process == incarnation and sequence <= last:
            return PushOutcome.REPEATED
        if self._pushes == _Pushes.DROP or self.is_finished:
            return PushOutcome.DROPPED
        return None

    def _of(self, run: str) -> _CurrentRun:
        current = self._current
        if current is None and not run:
            raise CallError("this ps holds no parameters; worker 0 must first begin a run")
        if current is None or run != current.plan.run or not self._confirmed:
            raise OtherRunError
        return current

    def _set_pushes(self, pushes: _Pushes) -> None:
        with self._lock:
            self._pushes = pushes
            self._pushes_changed.notify_all()

    def _note_staleness(self, value: int) -> None:
        self._staleness.add(value)
        self._unreported.append(min(value, (1 << 32) - 1))

    def _load(self, plan: Plan, shard: Shard, content: bytes | bytearray, version: int) -> None:
        self._current = None  # frees its memory before the next run needs its own
        updates = Updates(plan, shard, self._kernels, self._make_schedule(plan.schedule))
        updates.load(content, version)
        (code,) = change_codes(plan, [shard], self._kernels)
        self._current = _CurrentRun(plan, shard, updates, code)
        self._snapshots.reset()
        if code:
            own, workers = code.size * FLOAT_BYTES / 1e6, len(self._worker_hosts)
            self._log(
                f"pull_codec={plan.pull_codec}: keeps a copy of the parameters for each connected "
                f"worker, {own:.2f} MB each, {own * workers:.2f} MB for all {workers}."
            )
