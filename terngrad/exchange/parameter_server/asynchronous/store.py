"""What a ps holds of a run, for any thread: applies each gradient once, and keeps snapshots."""

from __future__ import annotations

import collections
import dataclasses
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from terngrad.exchange.channel import name_of
from terngrad.exchange.membership import difference
from terngrad.exchange.parameter_server.asynchronous import snapshots
from terngrad.exchange.parameter_server.asynchronous.plan import Plan, PlanError
from terngrad.exchange.parameter_server.asynchronous.space import Share, make_shares
from terngrad.exchange.parameter_server.asynchronous.staleness import Staleness
from terngrad.exchange.parameter_server.asynchronous.updates import Updates, state_bytes
from terngrad.ops.kernels import Kernels
from terngrad.training.schedules import Schedule

_UNTOLD = 512  # values of staleness that wait for worker 0 to ask


class CallError(ValueError):
    """Says why a worker cannot do what it asks for."""


class Standing(NamedTuple):
    """Where a ps stands: its run ("" = none), updates, and whether worker 0 must first come."""

    run: str
    version: int
    waits: bool


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
        self._plan: Plan | None = None
        self._share: Share | None = None
        self._updates: Updates | None = None
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
            run = self._plan.run if self._plan else ""
            return Standing(run, self.version, not (run and self._confirmed))

    @property
    def version(self) -> int:
        """Updates that were applied."""
        return self._updates.version if self._updates else 0

    @property
    def is_finished(self) -> bool:
        """Whether as many updates were applied as the run that goes on is to have."""
        with self._lock:
            return self._confirmed and self.version >= self._plan.max_steps

    @property
    def max_staleness(self) -> int:
        """Of the run, -1 = no bound."""
        return self._plan.max_staleness if self._plan else -1

    @property
    def pushed_bytes(self) -> int:
        """Bytes of a gradient; 0 while there is nothing that could be updated."""
        return self._share.pushed_bytes if self._share else 0

    def enter(self, worker: int, run: str, facts: Mapping[str, str]) -> Standing:
        """A worker has come, which was in `run`, if it was in any.

        Raises:
          CallError: names what the worker does not have in common with the run.
        """
        with self._lock:
            if self._plan and run == self._plan.run:
                self._confirmed = True
            # Worker 0 may begin another run, and then what it says holds.
            if self._plan and worker:
                names = name_of(0, self._worker_hosts), name_of(worker, self._worker_hosts)
                if text := difference(self._plan.facts, facts, *names):
                    raise CallError(text)
            return self.standing

    def expect(self, content: bytes | bytearray) -> tuple[Plan, Share, int]:
        """Reads a plan: what is to begin, this ps' share of it, and the bytes of its state.

        Raises:
          PlanError: it is none that could be followed.
        """
        plan = Plan.from_json(bytes(content))
        share = make_shares(plan.layout(), self._ps_count, plan.nodes, plan.statistics)[self._ps]
        try:
            self._make_schedule(plan.schedule)
        except (ValueError, TypeError, KeyError) as error:
            raise PlanError(f"the schedule is none: {error}") from None
        return plan, share, state_bytes(plan, share)

    def begin(self, plan: Plan, share: Share, content: bytes | bytearray, version: int) -> None:
        """Begins a run with a state of the right size, in the place of any before."""
        with self._lock:
            self._take(plan, share, content, version)
            self._applied.clear()
            self._confirmed = True
            self.keep()

    def push(
        self, worker: int, incarnation: int, sequence: int, version: int, content: bytearray
    ) -> bool:
        """Applies a worker's gradient, unless it was applied before or the run is finished.

        Args:
          worker: whose it is.
          incarnation: of the worker's process.
          sequence: larger at each push of a process, the same if it is sent again.
          version: of the parameters that the gradient is of.
          content: see `Share`.

        Returns:
          Whether it was applied.

        Raises:
          CallError, GradientError: it cannot be applied.
        """
        updates = self._updates
        if updates is None or not self._confirmed:
            raise CallError("there are no parameters to update")
        gradient = updates.check(content)
        with self._lock:
            if updates is not self._updates:
                raise CallError("another run has begun")
            process, last = self._applied.get(worker, (incarnation, 0))
            if (process == incarnation and sequence <= last) or self.is_finished:
                return False
            updates.apply(gradient)
            self._applied[worker] = (incarnation, sequence)
            self._note(max(0, updates.version - 1 - version))
            if self._keeping.steps and updates.version - self._kept_version >= self._keeping.steps:
                self.keep()
            return True

    def pulled(self) -> tuple[int, bytes]:
        """Version and parameters as workers pull them; CallError where there are none."""
        with self._lock:
            updates = self._held()
            return updates.version, updates.pulled()

    def state(self) -> tuple[int, bytes]:
        """Version and everything that belongs into a checkpoint; CallError where there is none."""
        with self._lock:
            updates = self._held()
            return updates.version, updates.state()

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
            if not (self._keeping.steps and self._updates and self._confirmed):
                return
            if self._kept_version == self.version:
                return
            applied = {str(worker): pair for worker, pair in self._applied.items()}
            description = {"ps": self._ps, "ps_count": self._ps_count, "applied": applied}
            description["plan"] = self._plan.to_json()
            try:
                snapshots.save(
                    self._keeping.folder, self.version, description, self._updates.state()
                )
            except OSError as error:
                self._tell(f"No snapshot of step {self.version} could be written: {error}")
            self._kept_version = self.version

    def _held(self) -> Updates:
        if self._updates is None:
            raise CallError("there are no parameters yet")
        return self._updates

    def _note(self, value: int) -> None:
        self.staleness.add(value)
        self._untold.append(min(value, (1 << 32) - 1))

    def _take(self, plan: Plan, share: Share, content: bytes | bytearray, version: int) -> None:
        self._plan, self._share = plan, share
        self._updates = None  # before the next is made, so that there are never two
        updates = Updates(plan, share, self._kernels, self._make_schedule(plan.schedule))
        updates.load(content, version)
        self._updates, self._kept_version = updates, -1

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
        except (PlanError, KeyError) as error:
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
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise CallError("it enters with what is no JSON of run and facts") from None
