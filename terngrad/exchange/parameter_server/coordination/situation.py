"""The knowledge of ps 0 about a training, and the rules for who makes a step."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable

from terngrad.cluster.pulse import Standstill
from terngrad.exchange.parameter_server import groups
from terngrad.exchange.parameter_server.coordination.roster import Roster
from terngrad.exchange.parameter_server.coordination.selection import Selection
from terngrad.exchange.parameter_server.coordination.transitions import (
    PHASE_AFTER,
    Phase,
    TrainingEvent,
    WorkerEvent,
)
from terngrad.service.messages import View


@dataclasses.dataclass(frozen=True)
class Rules:
    """Which workers make a step.

    Attributes:
      needed: number of workers that make a step; the first ones if there are more.
      elastic: whether to continue with fewer workers when lost ones do not come back in time.
      timeout_secs: longest time for which a worker may be away.
    """

    needed: int
    elastic: bool
    timeout_secs: float

    def __str__(self) -> str:
        """As the flags that must be the same on ps and workers."""
        return (
            f"num_replicas_to_aggregate={self.needed}, elastic={self.elastic}, "
            f"worker_timeout_secs={self.timeout_secs:g}"
        )


@dataclasses.dataclass
class Situation:
    """The facts behind all decisions; only `Coordinator` changes them.

    Attributes:
      rules: which workers make a step.
      roster: a record of each worker.
      clock: returns seconds.
      number: number of the last view of this ps.
      phase: phase of the training.
      since: start of the phase, in seconds of the clock.
      began: start of this ps, in seconds of the clock.
      view: the last view; None before the first of this ps.
      members: members of that view.
      selection: selects the workers of each step; None if all members make each step.
      standstill: progress of the members.
      stood_still_at: batches taken when they last made no step for very long; None = never.
      dropped_before: number of late gradients in earlier views, by worker.
      some_are_done: whether a worker has reported that it is done.
      outcome: None while the training continues, "" when it is done, else why it failed.
    """

    rules: Rules
    roster: Roster
    clock: Callable[[], float]
    number: int
    phase: Phase = Phase.STARTING
    since: float = 0.0
    began: float = dataclasses.field(init=False)
    view: View | None = None
    members: frozenset[int] = frozenset()
    selection: Selection | None = None
    standstill: Standstill = dataclasses.field(init=False)
    stood_still_at: int | None = None
    dropped_before: collections.Counter[int] = dataclasses.field(
        default_factory=collections.Counter
    )
    some_are_done: bool = False
    outcome: str | None = None

    def __post_init__(self) -> None:
        """Starts the clocks."""
        self.began = self.since = self.clock()
        self.standstill = Standstill(self.rules.timeout_secs)

    @property
    def dropped(self) -> collections.Counter[int]:
        """Number of late gradients by worker."""
        before = self.dropped_before
        return before + self.selection.dropped if self.selection else before

    def idle(self) -> set[int]:
        """Returns the members that have made no step yet and that the others need not wait for."""
        if self.selection is None or self.view.is_first:
            return set()
        idle = {worker for worker in self.members if self.roster[worker].is_idle}
        return idle if len(self.roster.able & self.members - idle) >= self.rules.needed else set()

    def install(self, view: View) -> None:
        """Installs the next view; all workers with a standing become its members."""
        standings, receivers = self.roster.standings, groups.unpack(view.receivers)
        self.dropped_before = self.dropped
        self.view, self.number, self.members = view, view.number, frozenset(standings)
        is_spare = view.needed < len(standings)
        self.selection = Selection(standings, view.needed, view.steps) if is_spare else None
        self.standstill = Standstill(self.rules.timeout_secs)
        for worker in range(len(self.roster)):
            self.roster[worker].lacks_state = worker in receivers
        for worker in standings:
            self.roster[worker].change(WorkerEvent.INSTALL)
        self.move(TrainingEvent.INSTALL)

    def move(self, what: TrainingEvent) -> None:
        """Applies an event to the phase."""
        self.phase, self.since = PHASE_AFTER[self.phase][what], self.clock()
