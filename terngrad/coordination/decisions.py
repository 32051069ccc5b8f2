"""Which workers make the next view and each step, and what to do if something takes too long.

`CoordinatorState` holds what is known. The functions read it and change nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from terngrad.cluster.progress import GIVE_UP_TIME_OUTS, divergence
from terngrad.coordination import groups
from terngrad.coordination.states import JOINED, CoordinatorState, Phase, Status
from terngrad.service.messages import StateReport, View

CHIEF = 0  # has the state if no worker is live
MAX_STEPS = 1 << 62
_MAX_AHEAD = 10**11  # numbers of views count milliseconds: about three years
_MAX_AT_FIRST = 1 << 61  # the clock of a restarted coordinator may be years behind
_GRACE_SECS = 5.0  # for workers to find a coordinator that has started again
_IDLE_SECS = 5.0  # for which the others wait for a member that has made no step yet
_MAX_IDLE = 2  # sessions without a contribution before a worker must wait to join again
_FIRST_DELAY_SECS, _LONGEST_DELAY_SECS = 5.0, 600.0


@dataclasses.dataclass(frozen=True)
class EndTraining:
    """The decision to end the training."""

    why: str  # "" if it is done
    because_of: Iterable[int] = ()  # workers that caused it, and so do not save


@dataclasses.dataclass(frozen=True)
class Ask:
    """The decision to ask all members for their states."""

    abandoned: Iterable[int] = ()  # workers that hang; the others continue without them
    why: str = ""
    stalled_at: int | None = None  # see `CoordinatorState`; None if the members make steps


@dataclasses.dataclass(frozen=True)
class Dismiss:
    """The decision to dismiss workers: others are done, and these are too few or came too late."""


# The next view.


def check_report(state: CoordinatorState, report: StateReport) -> None:
    """Checks a worker's report of its state.

    Raises:
      ValueError: a number is out of range.
    """
    highest = state.number + _MAX_AHEAD if state.view else _MAX_AT_FIRST
    if report.view > highest:
        raise ValueError(f"state_report: view is {report.view}; allowed is up to {highest}")
    if report.steps > MAX_STEPS:
        raise ValueError(f"state_report: steps is {report.steps}; allowed is up to 2^62")
    groups.unpack(report.members, len(state.records))
    if report.coordinator >= max(1, len(state.records)):
        raise ValueError(f"state_report: coordinator is {report.coordinator}; no such ps")


def form(state: CoordinatorState) -> View | Dismiss | EndTraining | None:
    """Decides on a new view, in phase FORMING; None = some reports are missing."""
    if not may_form(state):
        return None
    reports, rules, live = state.reports, state.rules, state.live
    too_few = len(reports) < rules.needed
    if state.some_are_done and (not live or too_few or too_few_to_go_on(state)):
        return Dismiss()
    if not reports or (too_few and not rules.elastic):
        return EndTraining(state.explain(state.lost))
    if too_few_to_go_on(state):
        return None
    if live or CHIEF in reports:
        return next_view(state)
    return EndTraining(f"{state.explain([CHIEF])}, and no other worker has the state")


def may_form(state: CoordinatorState) -> bool:
    """Returns whether all reports are there that a new view needs."""
    return state.phase is Phase.FORMING and not (_missing_reports(state) or awaited(state))


def _takes_over(state: CoordinatorState) -> bool:
    """Returns whether the coordinator of the last view was another one."""
    last = state.last_view
    return state.rules.coordinator_moves and state.view is None and last is not None


def too_few_to_go_on(state: CoordinatorState) -> str:
    """Says why the workers that have reported must wait for others; "" = they need not.

    They must be `min_size`. Where the coordinator moves, a network partition may have separated the
    workers, and another side may go on, or may train already while this one begins. It cannot where
    all others have ended, or where those that are here are more than half: of all workers at first,
    later of the members of the last view. Of two halves, that of the last coordinator's worker goes
    on, at first that of the chief. Members that have ended do not count, unless they may have been
    on the other side before.
    """
    rules, reports = state.rules, state.reports
    if rules.elastic and len(reports) < rules.min_size:
        return f"{len(reports)} of at least {rules.min_size} workers have joined"
    if not rules.coordinator_moves:
        return ""
    if (last := state.last_view) is None:
        count = len(state.records)
        absent = {*range(count)} - reports.keys() - state.ended
        is_half = 2 * len(reports) == count and CHIEF in reports
        if not absent or 2 * len(reports) > count or is_half:
            return ""
        return f"{listed(sorted(absent))} cannot be reached and may train already"
    members = {*groups.unpack(last.members)}
    here = {worker for worker in members & reports.keys() if reports[worker].is_live}
    absent = members - here - state.ended
    counted = members - state.ended_in_view
    first = last.coordinator if last.coordinator in counted else min(counted, default=None)
    is_half = 2 * len(here) == len(counted) and first in here
    if not absent or 2 * len(here) > len(counted) or is_half:
        return ""
    return f"{listed(sorted(absent))} of the last view cannot be reached and may go on alone"


def _missing_reports(state: CoordinatorState) -> set[int]:
    """Returns the workers whose reports a view still needs.

    It needs those of all members. If these are too few, or none of them has the state, it also
    needs those of the workers that are about to join: one of these may have the state.
    """
    reports, rules = state.reports, state.rules
    too_few = len(reports) < rules.needed and not rules.elastic
    asked = state.responsive
    if state.view is not None and state.live and not too_few:
        asked &= state.members
    return asked - reports.keys()


def awaited(state: CoordinatorState) -> set[int]:
    """Returns the lost workers for which a view waits."""
    live, returning, needed = state.live, state.returning, state.rules.needed
    # The workers of the lost coordinator find this one within the grace period.
    if _takes_over(state):
        members = {*groups.unpack(state.last_view.members)} - state.ended
        is_late = state.clock() - state.began >= _GRACE_SECS
        return set() if is_late else members - state.connected
    if state.view is not None:
        # If no connected worker has the state, a lost one may have it.
        return returning if len(state.reports) < needed or not live else set()
    known = {worker for report in live for worker in groups.unpack(report.members)}
    if known and len(live) >= needed and state.clock() - state.began >= _GRACE_SECS:
        return set()  # after a restart of the coordinator, enough workers are connected
    return returning & known if known else returning


def next_view(state: CoordinatorState) -> View:
    """Returns the view of all workers with a report; the chief or a live one is among them."""
    reports, members = state.reports, sorted(state.reports)
    live = [worker for worker in members if reports[worker].is_live]
    # Only members of this coordinator's last view have made the steps since then.
    live = [worker for worker in live if worker in state.members] or live
    # A worker that missed the last view may have made other steps than its members.
    newest = max((reports[worker].view for worker in live), default=0)
    sources = [worker for worker in live if reports[worker].view == newest] or [CHIEF]
    steps = max(reports[worker].steps for worker in sources)
    current = [worker for worker in sources if reports[worker].steps == steps]
    known = max(report.view for report in reports.values())
    needed = min(state.rules.needed, len(members))
    # The others may make steps without the rest, which may take long until their first one.
    active = [w for w in members if w in current or state.records[w].session.is_active]
    return View(
        number=max(state.number, known) + 1,
        steps=steps,
        members=groups.pack(members),
        needed=needed,
        donor=current[0],
        receivers=groups.pack(worker for worker in members if worker not in current),
        is_first=not live,
        lost_ps=groups.pack(state.unused_ps_of(frozenset(members))),
        coordinator=state.ps,
        saver=members[0] if needed == len(members) else active[0],
    )


def in_words(view: View, *, names_ps: bool = True) -> str:
    """Describes a view for the log, without its ps if each belongs to a worker."""
    members, receivers = groups.unpack(view.members), groups.unpack(view.receivers)
    verb = "trains" if len(members) == 1 else "train"
    text = f"{listed(members)} {verb} from step {view.steps} on"
    if view.needed < len(members):
        text += f", {view.needed} of them at each step"
    if names_ps and (lost := groups.unpack(view.lost_ps)):
        text += f", without {listed(lost, 'ps', 'ps')}"
    if receivers:
        text += f"; worker {view.donor} gives its state to {listed(receivers)}"
    return f"{text[0].upper()}{text[1:]}."


def listed(members: Sequence[int], one: str = "worker", several: str = "workers") -> str:
    """Returns numbers as words, such as "workers 0 and 1"."""
    *others, last = map(str, members)
    return f"{several} {', '.join(others)} and {last}" if others else f"{one} {last}"


def contributors_of_values(state: CoordinatorState) -> set[int] | None:
    """Returns the workers without whose values none are sent; None = a lost one as well.

    Before the first view, all workers must give theirs. Later values wait only for members, also
    for lost ones that may come back, such as the chief, but not for those that others can make
    steps without. The one that saves is always waited for, so that nobody ends before the last
    state is saved, and the first member, because programs may save in the chief only.
    """
    if state.view is None:
        return None if awaited(state) else state.connected
    members = _needed_at_the_end(state)
    return None if state.returning & members else state.connected & members


def view_is_over(state: CoordinatorState) -> bool:
    """Returns whether the values of the last view must not be sent any more.

    Another view is without a lost member. Where there can be none, the others end without one, but
    not without the one that saves: then the training fails, and another worker saves.
    """
    if state.phase is Phase.FORMING:
        return True
    if state.view is None or not (lost := state.lost & _needed_at_the_end(state)):
        return False
    return state.view.saver in lost or _may_go_on(state)


def _needed_at_the_end(state: CoordinatorState) -> set[int]:
    return state.members - (state.idle - {min(state.members), state.view.saver})


def _may_go_on(state: CoordinatorState) -> bool:
    """Returns whether steps can be made without the members that are lost."""
    enough = len(state.responsive) >= state.rules.needed  # counts workers that are about to join
    return state.rules.elastic or bool(state.selection) or enough


def saver(state: CoordinatorState, because_of: Iterable[int]) -> int | None:
    """Returns the first worker that has the state and did not cause the end: it saves."""
    reports = state.reports
    without = {worker for worker, report in reports.items() if not report.is_live}
    joined = state.with_status(JOINED) - without - {*because_of}
    # A receiver may not have the whole state yet: it saves only if there is no other worker.
    lacking = {worker for worker in joined - reports.keys() if state.records[worker].lacks_state}
    return min(joined - lacking or joined, default=None)


# Backup workers that come and go while others train. One that leaves before its first step
# interrupts no step. One that does so repeatedly must wait before it joins, longer each time,
# unless it is needed.


def interrupts(state: CoordinatorState, worker: int) -> bool:
    """Returns whether a step may wait for a worker that leaves, though not all must make it."""
    if state.selection is None or worker not in state.members:
        return False
    return worker not in state.idle or worker in state.selection.active


def is_idle_session(state: CoordinatorState, worker: int) -> bool:
    """Returns whether a worker leaves without a contribution, though others could train."""
    session = state.records[worker].session
    could_train = state.view is not None and state.rules.needed < len(state.records)
    return could_train and session.has_reported and not session.has_contributed


def delay_secs(idle_sessions: int) -> float:
    """Returns how long a worker must wait to join after so many idle sessions in a row."""
    if idle_sessions <= _MAX_IDLE:
        return 0.0
    doublings = min(idle_sessions - 1 - _MAX_IDLE, 10)
    return min(_LONGEST_DELAY_SECS, _FIRST_DELAY_SECS * 2.0**doublings)


def must_wait(state: CoordinatorState, worker: int) -> bool:
    """Returns whether a worker must wait before it joins; it need not where it is needed."""
    if state.view is None or worker in state.with_status(JOINED):
        return False
    others = state.responsive & state.members - {worker}
    too_early = state.clock() < state.records[worker].joins_after
    return len(others) >= state.rules.needed and too_early


# What takes too long, and workers that cannot go on together.


def act_on_timeouts(state: CoordinatorState) -> EndTraining | Ask | None:
    """Returns what to do now; None if nothing takes too long."""
    if state.some_are_done and not state.responsive and not state.returning:
        return EndTraining("")  # the others were done and only had to leave
    if state.view is None and not _takes_over(state) and (found := _at_the_start(state)):
        return found
    if state.phase is Phase.FORMING:
        return _while_forming(state)
    return _while_stepping(state) if state.view is not None else None


def mismatch(state: CoordinatorState) -> EndTraining | None:
    """Ends the training of workers that do not run the same operations with each other."""
    operations = {worker: state.records[worker].session.operations for worker in state.connected}
    first = max(operations, key=lambda worker: operations[worker].count, default=None)
    for worker in sorted(state.with_status({Status.FINISHED})):
        made = state.records[worker].session.operations.count
        if first is not None and made < operations[first].count:
            left = f"{state.name(worker)} left after {made} operations with the others"
            more = f"of which {state.name(first)} has begun {operations[first].count}"
            return EndTraining(f"{left}, {more}: all need equally many batches and calls", [worker])
    why = divergence(operations, state.name)
    return EndTraining(why) if why else None


def _at_the_start(state: CoordinatorState) -> EndTraining | None:
    """Ends a training that can no longer begin."""
    gone = state.gone
    rules = state.rules
    needed = rules.min_size if rules.elastic else rules.needed
    if not gone or len(state.records) - len(gone) >= needed:
        return None
    if not (rules.elastic and needed > 1 and state.connected):
        return EndTraining(state.explain(gone))
    waited = state.clock() - state.began
    return EndTraining(_why_it_waited(state, waited)) if waited >= rules.wait_secs else None


def _why_it_waited(state: CoordinatorState, secs: float) -> str:
    return f"after {secs:.0f} s {too_few_to_go_on(state)}"


def _while_stepping(state: CoordinatorState) -> EndTraining | Ask | None:
    now, rules, stalls = state.clock(), state.rules, state.stalls
    if gone := state.gone & state.members:
        if state.some_are_done and not state.responsive:
            return None  # a worker lost since then may come back and learn that all are done
        return Ask() if _may_go_on(state) else EndTraining(state.explain(gone))
    if stalls.should_give_up(now):
        why = f"no worker made a step for {stalls.give_up_secs:g} s"
        # A worker that hangs within the step does not answer. If all do, they try it once more.
        at = stalls.max_batches
        return EndTraining(why) if at == state.stalled_at else Ask(why=why, stalled_at=at)
    if late := state.responsive & {*stalls.late(now)}:
        why = f"no next batch for {rules.timeout_secs:g} s while the others wait"
        left = state.connected & state.members - late
        if rules.elastic or len(left) >= rules.needed:
            return Ask(late, why)
        return EndTraining(f"{state.names(late)}: {why}", late)
    return None


def _while_forming(state: CoordinatorState) -> EndTraining | Ask | None:
    now, limit, missing = state.clock(), state.rules.timeout_secs, _missing_reports(state)
    waited, stuck = now - state.since, state.stalls.stuck
    are_idle = missing and missing <= state.idle
    if are_idle and waited > _IDLE_SECS and len(state.live) >= state.rules.needed:
        return Ask(missing, f"made no step, and does not report its step for {waited:.0f} s")
    all_hang = waited > limit and missing <= {*stuck(now, GIVE_UP_TIME_OUTS)}
    should_give_up = all_hang or waited > GIVE_UP_TIME_OUTS * limit
    # A worker that is silent within a step hangs; compiling and saving may take any time.
    hanging = missing if should_give_up else missing & {*stuck(now)}
    if hanging and waited > limit and _can_go_on(state, from_checkpoint=should_give_up):
        return Ask(hanging, f"no report of its step for {waited:.0f} s")
    if missing and should_give_up and not awaited(state):
        # Where others are done, these delay nobody.
        return EndTraining(
            "" if state.some_are_done else _why_no_view(state, missing, waited), missing
        )
    if not state.connected and not awaited(state):
        return EndTraining(state.explain(state.lost))
    if waited >= state.rules.wait_secs and not missing and too_few_to_go_on(state):
        return EndTraining(_why_it_waited(state, waited))
    return None


def _can_go_on(state: CoordinatorState, *, from_checkpoint: bool) -> bool:
    """Whether the workers with a report are enough and have the state, or the chief's checkpoint.

    The others may have a newer state.
    """
    reports = state.reports
    has_state = bool(state.live) or (from_checkpoint and CHIEF in reports)
    return has_state and (state.rules.elastic or len(reports) >= state.rules.needed)


def _why_no_view(state: CoordinatorState, missing: set[int], secs: float) -> str:
    members = state.members if state.view else {*range(len(state.records))}
    reasons = []
    if lost := state.gone & members - state.with_status({Status.HUNG}):
        reasons.append(state.explain(lost))
    if hung := missing & members:
        why = f"it has not reported its step for {secs:.0f} s"
        reasons.append(f"{state.names(hung)} hangs: {why}")
    if starting := missing - members:
        why = f"has connected but was not ready within {secs:.0f} s"
        reasons.append(f"{state.names(starting)} {why}")
    return "; ".join(reasons)
