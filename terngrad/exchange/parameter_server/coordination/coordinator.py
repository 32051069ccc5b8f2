"""ps 0 decides which workers train together, and decides again when a worker joins or is lost.

A lost worker may come back within the time-out. Until then its place is kept, and if a step needs
all workers, the step waits. After the time-out, the training continues without the worker if it is
elastic or has enough workers; otherwise it ends with an error that names the worker.

`transitions` defines the states of a worker and of the training, and their changes. Other modules
make the decisions: `quorum` whether there can be a view, `views` which one, `selection` who makes
a step, `patience` what to do when something takes too long, and `visits` who must wait to join.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Sequence

from terngrad.cluster.pulse import Begun
from terngrad.exchange.parameter_server import groups
from terngrad.exchange.parameter_server.coordination import patience, quorum, visits
from terngrad.exchange.parameter_server.coordination.all_gather import AllGather
from terngrad.exchange.parameter_server.coordination.quorum import Verdict
from terngrad.exchange.parameter_server.coordination.roster import Roster
from terngrad.exchange.parameter_server.coordination.situation import Rules, Situation
from terngrad.exchange.parameter_server.coordination.transitions import (
    JOINED,
    Phase,
    Status,
    TrainingEvent,
    WorkerEvent,
)
from terngrad.exchange.parameter_server.coordination.views import (
    CHIEF,
    check,
    in_words,
    listed,
    next_view,
)
from terngrad.service.messages import Order, Report, Standing

_LONGEST_REASON = 1000

Send = Callable[[int, Order], None]


class Coordinator:
    """Coordinates the workers of a training; any thread may call."""

    def __init__(
        self,
        worker_hosts: Sequence[str],
        rules: Rules,
        send: Send,
        drop: Callable[[int], None] = lambda worker: None,
        tell: Callable[[str], None] = print,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        servers: int = 1,
    ) -> None:
        """Starts without connected workers.

        Args:
          worker_hosts: "host:port" of all workers.
          rules: which workers make a step.
          send: sends an order to a worker; must not wait.
          drop: ends a worker's streams; must not wait.
          tell: writes a line to the log.
          clock: returns seconds.
          wall_clock: returns seconds since 1970; unlike `clock`, it continues over restarts.
          servers: number of ps.
        """
        roster = Roster(worker_hosts, rules.timeout_secs, clock)
        # The number also grows over restarts, so that pushes from before one never look new.
        self._of = Situation(rules, roster, clock, number=int(1000 * wall_clock()))
        self._saver: int | None = None  # the worker that saves at the end
        self._send, self._drop, self._tell = send, drop, tell
        self._lock = threading.RLock()
        self._all_gather = AllGather(send)
        self._servers = servers
        self._have_come: set[int] = set()
        self._failed_early = False  # before the first view

    @property
    def has_more_to_tell(self) -> bool:
        """Whether workers that have not come yet must learn why there is no training."""
        with self._lock:
            return self._failed_early and len(self._have_come) < len(self._roster)

    @property
    def outcome(self) -> str | None:
        """None while the training continues, "" when it is done, else why it failed."""
        return self._of.outcome

    @property
    def phase(self) -> Phase:
        """The phase of the training."""
        return self._of.phase

    def status(self, worker: int) -> Status:
        """Returns the status of a worker."""
        with self._lock:
            return self._roster[worker].status

    @property
    def dropped(self) -> collections.Counter[int]:
        """Number of late gradients by worker."""
        with self._lock:
            return self._of.dropped

    @property
    def idle_visits(self) -> collections.Counter[int]:
        """How often each worker lately came and left without contributing to a step."""
        with self._lock:
            counts = {i: self._roster[i].idle_visits for i in range(len(self._roster))}
            return +collections.Counter(counts)

    @property
    def lost_ps(self) -> tuple[int, ...]:
        """The ps that the current view does without."""
        with self._lock:
            return groups.unpack(self._of.view.lost_ps) if self._of.view else ()

    def connect(self, worker: int) -> None:
        """Notes that a worker's stream has begun."""
        with self._lock:
            was_lost = self._roster.connect(worker)
            self._have_come.add(worker)
            record = self._roster[worker]
            if self.outcome is not None:
                self._send(worker, self._last_order())
            elif was_lost and record.has_stood and record.status is not Status.RECONNECTED:
                self._tell(f"{self._roster.name(worker)} came back.")
            if self.outcome is None and (lost := self._lost_ps()):
                self._send(worker, Order(lost_ps=groups.pack(lost)))

    def expect_workers(self) -> None:
        """Notes that a worker has reached this ps, perhaps with its Exchange stream only."""
        with self._lock:
            self._roster.begin()

    def disconnect(self, worker: int, why: str) -> None:
        """Notes that a worker's stream has ended; in messages, `why` follows the worker's name."""
        with self._lock:
            record = self._roster[worker]
            if not record.is_here:
                return
            is_missed = visits.is_missed(self._of, worker)
            self._roster.lose(worker, why)
            if not self._roster.here:
                self._all_gather.clear()
            if self.outcome is None:
                if record.has_stood:  # a worker that only connects and leaves is not logged
                    self._tell(f"{self._roster.name(worker)} {why}.")
                if visits.is_idle(self._of, worker):
                    self._note_idle_visit(worker)
                if is_missed and not self._is_forming:
                    self._ask()
            self._go_on()

    def hear(self, worker: int, report: Report) -> None:
        """Handles a worker's report, unless it is part of a state.

        Raises:
          ValueError: a number is out of range.
        """
        with self._lock:
            if self.outcome is not None or not self._roster[worker].is_here:
                return
            what = report.WhichOneof("what")
            if what == "standing":
                self._stand(worker, report.standing)
            elif what == "value":
                if report.value.round <= self._of.number:  # later views do not exist
                    self._all_gather.give(worker, report.value)
            elif what == "ready":
                self._note_ready(worker, report.ready)
            elif what == "insists":
                if self._of.selection and worker in self._roster.those(JOINED):
                    self._of.selection.insist(worker)
            elif what == "lost_ps":
                self._note_lost_ps(worker, report.lost_ps)
            elif what == "progress":
                self._note_progress(worker, report)
            elif what == "failed":
                self._fail(worker, report.failed[:_LONGEST_REASON], is_shared=report.shared)
            elif what == "bye":
                self._finish(worker)
            self._go_on()

    def note_done(self) -> None:
        """Notes that a worker is done whose own report may be lost."""
        with self._lock:
            self._of.some_are_done = True

    def takes_pushes(self, worker: int, view: int) -> bool:
        """Returns whether a worker's pushes of a view can make a step.

        Others are those of a past view, of one that ps 0 made before a restart, or of a stranger.
        """
        with self._lock:
            now = self._of.view
            return now is not None and view == now.number and worker in self._of.members

    def receivers(self, donor: int, view: int) -> list[int]:
        """Returns the workers that receive a donor's state; none if the view is not valid."""
        with self._lock:
            now = self._of.view
            if self._is_forming or now is None or (now.donor, now.number) != (donor, view):
                return []
            return [w for w in groups.unpack(now.receivers) if self._roster[w].is_here]

    def watch(self) -> None:
        """Acts on time-outs; call it regularly."""
        with self._lock:
            self._let_in()
            self._go_on()
            remedy = patience.remedy(self._of) if self.outcome is None else None
            if isinstance(remedy, patience.End):
                self._end(remedy)
            elif remedy:
                self._go_on_without(remedy)

    @property
    def _roster(self) -> Roster:
        return self._of.roster

    @property
    def _is_forming(self) -> bool:
        return self._of.phase is Phase.FORMING

    def _stand(self, worker: int, standing: Standing) -> None:
        check(standing, self._of.view and self._of.number, len(self._roster))
        record = self._roster[worker]
        if visits.is_held(self._of, worker):
            record.visit.held = standing
            return
        is_training = self._of.phase is Phase.STEPPING and record.status is Status.TRAINING
        if is_training and standing.view < self._of.view.number:
            return  # it reported this twice and has its answer
        record.change(WorkerEvent.STAND, standing)
        record.has_stood = record.visit.has_stood = True
        if not self._is_forming:
            self._ask()

    def _let_in(self) -> None:
        """Lets workers join that were held back and need not wait any more."""
        for worker in range(len(self._roster)):
            visit = self._roster[worker].visit
            if visit.held and self._roster[worker].is_here and not visits.is_held(self._of, worker):
                standing, visit.held = visit.held, None
                self._stand(worker, standing)

    def _note_idle_visit(self, worker: int) -> None:
        record = self._roster[worker]
        record.idle_visits += 1
        if secs := visits.hold_secs(record.idle_visits):
            record.held_until = self._of.clock() + secs
            self._tell(
                f"{self._roster.name(worker)} came and left {record.idle_visits} times without "
                f"contributing to a step: it may join again in {secs:g} s."
            )

    def _note_ready(self, worker: int, step: int) -> None:
        if self._of.selection is None or self._of.phase is not Phase.STEPPING:
            return
        self._roster[worker].note_ready(step)
        for decided, contributors in self._of.selection.ready(worker, step):
            for chosen in contributors:
                self._roster[chosen].visit.chosen_for = decided
            order = Order()
            order.go.step, order.go.contributors = decided, groups.pack(contributors)
            for member in sorted(self._of.members):
                self._send(member, order)

    def _note_progress(self, worker: int, report: Report) -> None:
        last = report.progress.operation[:_LONGEST_REASON]
        self._roster[worker].begun = Begun(report.progress.begun, last, report.progress.alike)
        if self._of.view is not None and worker not in self._of.members:
            return
        batches = report.progress.batches if report.progress.is_stepping else None
        if batches is not None:
            self._roster[worker].lacks_state = False
        self._of.standstill.note(worker, batches, self._of.clock(), report.progress.begun)

    def _note_lost_ps(self, worker: int, content: bytes) -> None:
        """Notes which ps a worker does without; no worker waits for these any more.

        A ps that came back is used again when all members reach it.
        """
        lost = frozenset(groups.unpack(content, self._servers))
        if 0 in lost or (lost and not self._of.rules.elastic):
            raise ValueError("lost_ps: ps 0 cannot be lost, nor others without elastic")
        more = sorted(lost - self._lost_ps())
        self._roster[worker].visit.lost_ps = lost
        if more:
            self._tell(f"{self._roster.name(worker)} cannot reach {listed(more, 'ps', 'ps')}.")
            for each in sorted(self._roster.here):
                self._send(each, Order(lost_ps=groups.pack(self._lost_ps())))
        is_stepping = self._of.phase is Phase.STEPPING and worker in self._of.members
        if is_stepping and self._lost_ps() != {*groups.unpack(self._of.view.lost_ps)}:
            self._ask()

    def _lost_ps(self) -> frozenset[int]:
        """Returns the ps that the next view does not use, as far as is known now."""
        here = self._roster.here
        return self._roster.lost_ps(here & self._of.members if self._of.view else here)

    def _fail(self, worker: int, why: str, *, is_shared: bool) -> None:
        """Ends the training because a worker failed, unless the worker was only joining."""
        if self._of.view is None or worker in self._roster.those(JOINED):
            blame = "" if is_shared else f"{self._roster.name(worker)} failed: "
            self._failed_early = self._of.view is None
            self._end(patience.End(f"{blame}{why}", [] if is_shared else [worker]))
        else:
            self._all_gather.forget(worker)

    def _finish(self, worker: int) -> None:
        self._roster.finish(worker)
        self._of.standstill.forget(worker)
        self._of.some_are_done = True
        # Workers that hang cannot say that they are done. Those that come late must not be
        # alone: they learn that this one has left if they need it.
        if not self._roster.able and (self._of.view or not self._roster.expected()):
            self._end(patience.End(""))

    def _ask(self) -> None:
        """Asks all members for their standings, for a new view."""
        self._of.move(TrainingEvent.ASK)
        for member in sorted(self._of.members):
            record = self._roster[member]
            if record.is_here and record.status is not Status.STANDING:
                self._send(member, Order(freeze=True))

    def _go_on(self) -> None:
        """Does all that is possible now."""
        if self.outcome is not None:
            return
        if end := patience.departure(self._of) or patience.divergence(self._of):
            self._end(end)
            return
        # Before the first view, values are sent when all workers have given theirs. Later they
        # wait only for members, also for lost ones that may come back, such as the chief, but not
        # for those that others can make steps without.
        here, members = self._roster.here, self._of.members - self._of.idle()
        if self._of.view is None:
            missed, required = quorum.awaited(self._of), here
        else:
            missed, required = self._roster.recently_lost() & members, here & members
        self._all_gather.share(here, None if missed else required)
        if self._is_forming:
            self._form()

    def _form(self) -> None:
        verdict = quorum.verdict(self._of)
        if verdict is Verdict.INSTALL:
            self._install()
        elif verdict is Verdict.DISMISS:
            self._dismiss()
        elif verdict is Verdict.TOO_FEW:
            self._end(patience.End(self._roster.missing(self._roster.away)))
        elif verdict is Verdict.NO_STATE:
            why = f"{self._roster.missing([CHIEF])}, and no other worker has the state"
            self._end(patience.End(why))

    def _install(self) -> None:
        standings = self._roster.standings
        lost = self._roster.lost_ps(standings)
        view = next_view(standings, self._of.rules.needed, self._of.number, lost)
        self._of.install(view)
        self._tell(in_words(view))
        for member in sorted(self._of.members):
            self._send(member, Order(view=view))

    def _dismiss(self) -> None:
        for worker in self._roster.standings:
            self._roster[worker].change(WorkerEvent.DISMISS)
            self._send(worker, Order(finished=True))
        self._of.move(TrainingEvent.DISMISS)

    def _go_on_without(self, remedy: patience.Ask) -> None:
        """Asks for a new view; drops the workers that hang, which may connect again."""
        for worker in sorted(remedy.abandoned):
            self._tell(f"{self._roster.name(worker)}: {remedy.why}.")
            self._roster.abandon(worker)
            self._drop(worker)
        if remedy.stood_still_at is not None:
            self._of.stood_still_at = remedy.stood_still_at
            self._tell(f"{remedy.why}: all report their steps.")
        if not self._is_forming:
            self._ask()
        self._go_on()

    def _end(self, end: patience.End) -> None:
        """Ends the training; the first healthy worker that has the state saves it."""
        self._saver = quorum.saver(self._of, end.because_of)
        self._of.outcome = end.why
        self._of.move(TrainingEvent.END)
        for worker in sorted(self._roster.here):
            self._send(worker, self._last_order())

    def _last_order(self) -> Order:
        """Returns the order that tells a worker the outcome."""
        return Order(end=self.outcome, saver=self._saver) if self.outcome else Order(finished=True)
