"""All that ps 0 knows of a training, and what decides who makes a step."""

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
      needed: workers whose gradients make a step; the first ones if there are more.
      elastic: go on with fewer workers when the others do not come back in time.
      timeout_secs: for which a worker may be away.
    """

    needed: int
    elastic: bool
    timeout_secs: float

    def __str__(self) -> str:
        """In the words of the flags that ps and workers must have in common."""
        return (
            f"num_replicas_to_aggregate={self.needed}, elastic={self.elastic}, "
            f"worker_timeout_secs={self.timeout_secs:g}"
        )


@dataclasses.dataclass
class Situation:
    """What decisions are made from; `Coordinator` alone changes it.

    Attributes:
      rules: which workers make a step.
      roster: a record of each worker.
      clock: seconds.
      number: of the last view of this ps.
      phase: what the training does.
      since: when the phase began, in seconds of the clock.
      began: when this ps began.
      view: the last one; None before the first of this ps.
      members: of that view.
      selection: who makes which step; None where all members make each.
      standstill: how far the members are.
      dropped_before: gradients that came too late in earlier views, by worker.
      some_are_done: a worker has said that all is done.
      outcome: None while the training goes on, "" when it is done, else why it ended.
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
    dropped_before: collections.Counter[int] = dataclasses.field(
        default_factory=collections.Counter
    )
    some_are_done: bool = False
    outcome: str | None = None

    def __post_init__(self) -> None:
        """Begins now."""
        self.began = self.since = self.clock()
        self.standstill = Standstill(self.rules.timeout_secs)

    @property
    def dropped(self) -> collections.Counter[int]:
        """Gradients that came too late for their step, by worker."""
        before = self.dropped_before
        return before + self.selection.dropped if self.selection else before

    def install(self, view: View) -> None:
        """Makes the next view that which holds, of all workers that stand somewhere."""
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
        """Notes what happens to the training."""
        self.phase, self.since = PHASE_AFTER[self.phase][what], self.clock()
