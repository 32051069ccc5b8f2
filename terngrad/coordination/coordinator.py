"""Decides which workers train together, and decides again when a worker joins or is lost.

A lost worker may come back within the time-out. Until then its place is kept, and if a step needs
all workers, the step waits. After the time-out, the training continues without the worker if it is
elastic or has enough workers; otherwise it ends with an error that names the worker. An elastic
training waits for a much shorter time, if another worker has its state.

`states` defines the states of workers and training, and `decisions` says what follows from them.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Sequence

from terngrad.cluster.errors import LONGEST_REASON
from terngrad.cluster.progress import OperationProgress
from terngrad.coordination import decisions, groups
from terngrad.coordination.all_gather import AllGather, Send
from terngrad.coordination.decisions import Ask, Dismiss, EndTraining
from terngrad.coordination.states import (
    JOINED,
    CoordinatorState,
    Phase,
    Rules,
    Status,
    TrainingEvent,
    WorkerEvent,
)
from terngrad.service.messages import Order, Report, StateReport, View

# In the first line of a coordinator that replaces another, or tries to.
TAKES_OVER = "coordinates from now on, instead of"
WAITS = "needs more workers, and waits for them for up to"


class Coordinator:
    """Coordinates the workers of a training; any thread may call. Others only read its `state`."""

    def __init__(
        self,
        worker_hosts: Sequence[str],
        rules: Rules,
        send: Send,
        drop: Callable[[int], None] = lambda worker: None,
        log: Callable[[str], None] = print,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        servers: int = 1,
        ps: int = 0,
    ) -> None:
        """Starts without connected workers.

        Args:
          worker_hosts: "host:port" of all workers.
          rules: which workers make a step.
          send: sends an order to a worker; must not wait.
          drop: ends a worker's streams; must not wait.
          log: writes a line to the log.
          clock: returns seconds.
          wall_clock: returns seconds since 1970; unlike `clock`, it continues over restarts.
          servers: number of ps.
          ps: index of the ps that coordinates.
        """
        # Numbers of views also grow over restarts: pushes from before one never look new.
        self.state = CoordinatorState(worker_hosts, rules, clock, int(1000 * wall_clock()), ps)
        self._saver: int | None = None  # the worker that saves at the end
        self._send, self._drop, self._log = send, drop, log
        self._lock = threading.RLock()
        self._all_gather = AllGather(send)
        self._servers = servers
        self._failed_early = False  # before the first view
        self._last_wait = ""  # for what the next view waits

    @property
    def has_more_to_send(self) -> bool:
        """Whether workers that have not connected yet must learn why there is no training."""
        with self._lock:
            return self._failed_early and bool(self.state.expected)

    @property
    def outcome(self) -> str | None:
        """None while the training continues, "" when it is done, else why it failed."""
        return self.state.outcome

    @property
    def has_no_workers(self) -> bool:
        """Whether all its workers have moved to another coordinator, or may have."""
        with self._lock:
            is_open = self.outcome is None and not self.state.some_are_done
            return is_open and not self.state.connected

    @property
    def view_number(self) -> int:
        """Number of its last view; 0 = it has made none."""
        with self._lock:
            return self.state.view.number if self.state.view else 0

    @property
    def dropped(self) -> collections.Counter[int]:
        """Number of late gradients by worker."""
        with self._lock:
            return self.state.dropped

    @property
    def idle_sessions(self) -> collections.Counter[int]:
        """How often each worker lately came and left without contributing to a step."""
        with self._lock:
            sessions = enumerate(record.idle_sessions for record in self.state.records)
            return +collections.Counter(dict(sessions))

    @property
    def lost_ps(self) -> tuple[int, ...]:
        """The ps that the current view does without."""
        with self._lock:
            return groups.unpack(self.state.view.lost_ps) if self.state.view else ()

    def connect(self, worker: int) -> None:
        """Notes that a worker's stream has begun."""
        with self._lock:
            was_lost = self.state.connect(worker)
            record = self.state.records[worker]
            if self.outcome is not None:
                self._send(worker, self._last_order())
                return
            if was_lost and record.has_reported and record.status is not Status.RECONNECTED:
                self._log(f"{self.state.name(worker)} came back.")
            if lost := self.state.unused_ps:
                self._send(worker, Order(lost_ps=groups.pack(lost)))

    def expect_workers(self) -> None:
        """Notes that a worker has connected, though perhaps not yet to the coordinator."""
        with self._lock:
            self.state.begin()

    def disconnect(self, worker: int, why: str, silent_secs: float = 0.0) -> None:
        """Notes that a worker's stream has ended.

        Args:
          worker: the worker.
          why: the reason; in messages it follows the worker's name.
          silent_secs: for how long nothing was received from the worker: it counts as lost since
            then.
        """
        with self._lock:
            if worker not in self.state.connected:
                return
            interrupts = decisions.interrupts(self.state, worker)
            if self.state.records[worker].session.leaves:
                why = "left"
            self.state.lose(worker, why, silent_secs=silent_secs)
            if not self.state.connected:
                self._all_gather.clear()
            if self.outcome is None:
                if self.state.records[worker].has_reported:  # others only connect and leave
                    self._log(f"{self.state.name(worker)} {why}.")
                if decisions.is_idle_session(self.state, worker):
                    self._note_idle_session(worker)
                if interrupts:
                    self._ask()
            self._advance()

    def handle(self, worker: int, message: Report) -> None:
        """Handles a worker's message, unless it is part of a state.

        Raises:
          ValueError: a number is out of range.
        """
        with self._lock:
            if self.outcome is not None or worker not in self.state.connected:
                return
            what = message.WhichOneof("what")
            if what == "state_report":
                self._take_report(worker, message.state_report)
            elif what == "value":
                if message.value.round <= self.state.number:  # later views do not exist
                    self._all_gather.give(worker, message.value)
                if message.value.round == self.state.number:
                    self._note_active(worker)
            elif what == "ready":
                self._note_ready(worker, message.ready)
            elif what == "is_required_in_next_step":
                if self.state.selection and worker in self.state.with_status(JOINED):
                    self.state.selection.require(worker)
            elif what == "lost_ps":
                self._note_lost_ps(worker, message.lost_ps)
            elif what in ("ended_ps", "ended_in_view"):
                ended = groups.unpack(getattr(message, what), self._servers)
                setattr(self.state.records[worker].session, what, frozenset(ended))
            elif what == "leaves":
                self.state.records[worker].session.leaves = True
            elif what == "has_state":
                self._note_state(worker, message.has_state)
            elif what == "progress":
                self._note_progress(worker, message)
            elif what == "failed":
                self._fail(worker, message.failed[:LONGEST_REASON], is_shared=message.shared)
            elif what == "bye":
                self._finish(worker)
            self._advance()

    def note_done(self) -> None:
        """Notes that a worker is done whose own report may be lost."""
        with self._lock:
            self.state.some_are_done = True

    def takes_pushes(self, worker: int, view: int) -> bool:
        """Returns whether a worker's pushes of a view can make a step.

        Others are those of a past view, of one made before the coordinator started again, or of a
        worker that is no member.
        """
        with self._lock:
            now = self.state.view
            return now is not None and view == now.number and worker in self.state.members

    def receivers(self, donor: int, view: int) -> list[int]:
        """Returns the workers that receive a donor's state; none if the view is not valid."""
        with self._lock:
            now, connected = self.state.view, self.state.connected
            if self._is_forming or now is None or (now.donor, now.number) != (donor, view):
                return []
            return [worker for worker in groups.unpack(now.receivers) if worker in connected]

    def watch(self) -> None:
        """Acts on time-outs; call it regularly."""
        with self._lock:
            if self.outcome is None:
                self._admit_waiting()
                self._advance()
            if self.outcome is None:
                self._act(decisions.act_on_timeouts(self.state))
                self._advance()

    @property
    def _is_forming(self) -> bool:
        return self.state.phase is Phase.FORMING

    def _take_report(self, worker: int, report: StateReport) -> None:
        state, record = self.state, self.state.records[worker]
        decisions.check_report(state, report)
        if decisions.must_wait(state, worker):
            record.session.pending = report
            return
        is_training = state.phase is Phase.STEPPING and record.status is Status.TRAINING
        if is_training and report.view < state.view.number:
            return  # it reported this twice and has its answer
        record.change(WorkerEvent.REPORT, report)
        record.has_reported = record.session.has_reported = True
        self._ask()

    def _admit_waiting(self) -> None:
        """Lets workers join whose waiting time is over."""
        for worker in sorted(self.state.connected):
            session = self.state.records[worker].session
            if session.pending and not decisions.must_wait(self.state, worker):
                report, session.pending = session.pending, None
                self._take_report(worker, report)

    def _note_idle_session(self, worker: int) -> None:
        record = self.state.records[worker]
        record.idle_sessions += 1
        if secs := decisions.delay_secs(record.idle_sessions):
            record.joins_after = self.state.clock() + secs
            self._log(
                f"{self.state.name(worker)} came and left {record.idle_sessions} times without "
                f"contributing to a step: it may join again in {secs:g} s."
            )

    def _note_ready(self, worker: int, step: int) -> None:
        self._note_active(worker)
        if self.state.selection is None or self.state.phase is not Phase.STEPPING:
            return
        record = self.state.records[worker]
        if -1 < record.session.chosen_for < step:  # the steps before were made
            record.session.has_contributed, record.idle_sessions = True, 0
        for decided, contributors in self.state.selection.ready(worker, step):
            for chosen in contributors:
                self.state.records[chosen].session.chosen_for = decided
            order = Order()
            order.go.step, order.go.contributors = decided, groups.pack(contributors)
            self._send_to(self.state.members, order)

    def _note_active(self, worker: int) -> None:
        """Notes that a member takes part; if it comes before the one that saves, it does so next.

        Only a view can tell all at once who saves, so that neither two do nor nobody.
        """
        if self.state.view is None or worker not in self.state.members:
            return
        self.state.records[worker].session.is_active = True
        if worker < self.state.view.saver and self.state.phase is Phase.STEPPING:
            self._ask()

    def _note_state(self, worker: int, view: int) -> None:
        """Notes that a receiver of a view has its state.

        Where the others make steps without it, that state soon lacks some: the worker's own steps
        count there, see `_note_progress`.
        """
        state = self.state
        if state.view is not None and view == state.view.number and state.selection is None:
            state.records[worker].lacks_state = False

    def _note_progress(self, worker: int, message: Report) -> None:
        progress, record = message.progress, self.state.records[worker]
        record.session.operations = OperationProgress(
            progress.operations, progress.operation[:LONGEST_REASON], progress.alike
        )
        if self.state.view is not None and worker not in self.state.members:
            return
        if progress.is_stepping:
            record.is_new = record.lacks_state = False
        batches = progress.batches if progress.is_stepping else None
        self.state.stalls.note(worker, batches, self.state.clock(), progress.operations)

    def _note_lost_ps(self, worker: int, content: bytes) -> None:
        """Notes which ps a worker does without; no worker waits for these any more.

        A ps that came back is used again when all members reach it.
        """
        state, lost = self.state, frozenset(groups.unpack(content, self._servers))
        rules = state.rules
        if (lost and not rules.elastic) or (0 in lost and not rules.coordinator_moves):
            raise ValueError("lost_ps: ps 0 cannot be lost, nor others without elastic")
        more = sorted(lost - state.unused_ps)
        state.records[worker].session.lost_ps = lost
        if more and not rules.coordinator_moves:  # where the worker is lost, a line says so
            self._log(f"{state.name(worker)} cannot reach {decisions.listed(more, 'ps', 'ps')}.")
        if more:
            self._send_to(state.connected, Order(lost_ps=groups.pack(state.unused_ps)))
        is_stepping = state.phase is Phase.STEPPING and worker in state.members
        if is_stepping and state.unused_ps != {*groups.unpack(state.view.lost_ps)}:
            self._ask()

    def _fail(self, worker: int, why: str, *, is_shared: bool) -> None:
        """Ends the training because a worker failed, unless the worker was only joining.

        Where the coordinator moves, others may train already at another one.
        """
        moves = self.state.rules.coordinator_moves and worker != decisions.CHIEF
        is_early = self.state.view is None and not moves
        if is_early or worker in self.state.with_status(JOINED):
            blame = "" if is_shared else f"{self.state.name(worker)} failed: "
            self._failed_early = self.state.view is None
            self._end(EndTraining(f"{blame}{why}", [] if is_shared else [worker]))
        else:
            self._all_gather.forget(worker)
            if moves:
                self._log(f"{self.state.name(worker)} failed before it joined: {why}.")

    def _finish(self, worker: int) -> None:
        state = self.state
        state.records[worker].change(WorkerEvent.FINISH)
        state.stalls.forget(worker)
        state.some_are_done = True
        # Workers that hang cannot report that they are done. Late ones must not wait in vain: they
        # learn that this one has left if they need it.
        if not state.responsive and (state.view or not state.expected & state.returning):
            self._end(EndTraining(""))

    def _ask(self) -> None:
        """Asks all members for their states, for a new view, unless they were asked already."""
        if self._is_forming:
            return
        self.state.move(TrainingEvent.ASK)
        asked = self.state.members & self.state.connected
        self._send_to(asked - self.state.with_status({Status.WAITING}), Order(report_state=True))

    def _advance(self) -> None:
        """Makes all decisions that are possible now."""
        state = self.state
        if self.outcome is None:
            self._act(decisions.mismatch(state))
        if self.outcome is None:
            # All go on with the values of a view, or none.
            over = state.number if decisions.view_is_over(state) else None
            required = decisions.contributors_of_values(state)
            self._all_gather.share(state.connected, required, over)
            self._act(decisions.form(state) if self._is_forming else None)
        if self.outcome is None:
            self._log_wait()

    def _log_wait(self) -> None:
        """Logs once why a view waits for more workers."""
        why = decisions.too_few_to_go_on(self.state) if decisions.may_form(self.state) else ""
        if why and why != self._last_wait:
            left = self.state.rules.wait_secs - (self.state.clock() - self.state.since)
            self._log(f"{self.state.name(self.state.ps)} {WAITS} {left:.0f} s: {why}.")
        self._last_wait = why

    def _log_takeover(self) -> None:
        """Logs before its first view which coordinator it replaces, if any."""
        last, ps = self.state.last_view, self.state.ps
        before = last.coordinator if last else decisions.CHIEF
        if self.state.rules.coordinator_moves and self.state.view is None and before != ps:
            self._log(f"{self.state.name(ps)} {TAKES_OVER} {self.state.name(before)}.")

    def _act(self, decision: EndTraining | Ask | View | Dismiss | None) -> None:
        if isinstance(decision, EndTraining):
            self._end(decision)
        elif isinstance(decision, Ask):
            self._continue_without(decision)
        elif isinstance(decision, View):
            self._log_takeover()
            self.state.install(decision)
            self._all_gather.keep_rounds_of(self.state.members)
            self._log(decisions.in_words(decision, names_ps=not self.state.rules.coordinator_moves))
            self._send_to(self.state.members, Order(view=decision))
        elif isinstance(decision, Dismiss):
            self._dismiss()

    def _dismiss(self) -> None:
        for worker in self.state.reports:
            self.state.records[worker].change(WorkerEvent.DISMISS)
            self._send(worker, Order(finished=True))
        self.state.move(TrainingEvent.DISMISS)

    def _continue_without(self, decision: Ask) -> None:
        """Asks for a new view; drops the workers that hang, which may connect again."""
        for worker in sorted(decision.abandoned):
            self._log(f"{self.state.name(worker)}: {decision.why}.")
            self.state.lose(worker, "hung", hangs=True)
            self._drop(worker)
        if decision.stalled_at is not None:
            self.state.stalled_at = decision.stalled_at
            self._log(f"{decision.why}: all report their steps.")
        self._ask()

    def _end(self, end: EndTraining) -> None:
        """Ends the training; the first healthy worker that has the state saves it."""
        self._saver = decisions.saver(self.state, end.because_of)
        self.state.outcome = end.why
        self.state.move(TrainingEvent.END)
        self._send_to(self.state.connected, self._last_order())

    def _last_order(self) -> Order:
        """Returns the order that tells a worker the outcome."""
        return Order(end=self.outcome, saver=self._saver) if self.outcome else Order(finished=True)

    def _send_to(self, workers: frozenset[int] | set[int], order: Order) -> None:
        for worker in sorted(workers):
            self._send(worker, order)
