"""What ps 0 does when something takes too long."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from terngrad.cluster import pulse
from terngrad.cluster.pulse import HOPELESS
from terngrad.exchange.parameter_server.coordination import quorum
from terngrad.exchange.parameter_server.coordination.situation import Situation
from terngrad.exchange.parameter_server.coordination.transitions import Phase, Status


@dataclasses.dataclass(frozen=True)
class End:
    """The decision to end the training.

    Attributes:
      why: the reason; "" if the training is done.
      because_of: workers that caused it and so do not save.
    """

    why: str
    because_of: Iterable[int] = ()


@dataclasses.dataclass(frozen=True)
class Ask:
    """The decision to ask all members for their standings.

    Attributes:
      abandoned: workers that hang; the others continue without them.
      why: the reason.
      stood_still_at: see `Situation`; None if the members make steps.
    """

    abandoned: Iterable[int] = ()
    why: str = ""
    stood_still_at: int | None = None


Remedy = End | Ask

_IDLE_SECS = 5.0  # for which the others wait for a member that has made no step yet


def remedy(of: Situation) -> Remedy | None:
    """Returns what to do now; None if nothing takes too long."""
    if of.some_are_done and not of.roster.able and not of.roster.recently_lost():
        return End("")  # the others were done and only had to say goodbye
    if of.view is None and (found := _of_the_start(of)):
        return found
    if of.phase is Phase.FORMING:
        return _of_forming(of)
    return _of_members(of) if of.view is not None else None


def departure(of: Situation) -> End | None:
    """Ends the training if a worker is done that another one needs for what it has begun."""
    begun_by = lambda worker: of.roster[worker].begun.count
    first = max(of.roster.here, key=begun_by, default=None)
    for worker in sorted(of.roster.those({Status.FINISHED})):
        made = begun_by(worker)
        if first is not None and made < (begun := begun_by(first)):
            left = f"{of.roster.name(worker)} left after {made} operations with the others"
            more = f"of which {of.roster.name(first)} has begun {begun}"
            return End(f"{left}, {more}: all need equally many batches and calls", [worker])
    return None


def divergence(of: Situation) -> End | None:
    """Ends the training if two workers are in different operations with the others."""
    begun = {worker: of.roster[worker].begun for worker in of.roster.here}
    why = pulse.divergence(begun, of.roster.name)
    return End(why) if why else None


def _of_the_start(of: Situation) -> Remedy | None:
    """Ends a training that can no longer begin."""
    gone = of.roster.gone()
    needed = 1 if of.rules.elastic else of.rules.needed
    return End(of.roster.missing(gone)) if gone and len(of.roster) - len(gone) < needed else None


def _of_members(of: Situation) -> Remedy | None:
    now, roster, rules = of.clock(), of.roster, of.rules
    if gone := roster.gone() & of.members:
        if of.some_are_done and not roster.able:
            return None  # a worker lost since then may come back and learn that all are done
        enough = len(roster.able) >= rules.needed  # counts workers that are about to join
        may_go_on = rules.elastic or of.selection or enough
        return Ask() if may_go_on else End(roster.missing(gone))
    if of.standstill.is_hopeless(now):
        why = f"no worker made a step for {of.standstill.hopeless_secs:g} s"
        # A worker that hangs within the step does not answer. If all do, they try it once more.
        at = of.standstill.most_batches
        return End(why) if at == of.stood_still_at else Ask(why=why, stood_still_at=at)
    if late := roster.able & {*of.standstill.late(now)}:
        why = f"no next batch for {rules.timeout_secs:g} s while the others wait"
        left = roster.here & of.members - late
        if rules.elastic or len(left) >= rules.needed:
            return Ask(late, why)
        return End(f"{roster.names(late)}: {why}", late)
    return None


def _of_forming(of: Situation) -> Remedy | None:
    waited, limit = of.clock() - of.since, of.rules.timeout_secs
    unsaid, stuck = quorum.unsaid(of), of.standstill.stuck
    if unsaid and unsaid <= of.idle() and waited > _IDLE_SECS and quorum.are_enough(of):
        return Ask(unsaid, f"made no step, and does not report its step for {waited:.0f} s")
    all_hang = waited > limit and unsaid <= {*stuck(of.clock(), HOPELESS)}
    is_hopeless = all_hang or waited > HOPELESS * limit
    # A worker that is silent within a step hangs; compiling and saving may take any time.
    behind = unsaid if is_hopeless else unsaid & {*stuck(of.clock())}
    if behind and waited > limit and quorum.enough_could_go_on(of, anew=is_hopeless):
        return Ask(behind, f"no report of its step for {waited:.0f} s")
    if unsaid and is_hopeless and not quorum.awaited(of):
        # Where others are done, there is nothing left that these could hold up.
        return End("" if of.some_are_done else _why_not_formed(of, unsaid, waited), unsaid)
    if not of.roster.here and not quorum.awaited(of):
        return End(of.roster.missing(of.roster.away))
    return None


def _why_not_formed(of: Situation, unsaid: set[int], secs: float) -> str:
    members = of.members if of.view else {*range(len(of.roster))}
    reasons = []
    if lost := of.roster.gone() & members - of.roster.those({Status.HUNG}):
        reasons.append(of.roster.missing(lost))
    if hung := unsaid & members:
        why = f"it has not reported its step for {secs:.0f} s"
        reasons.append(f"{of.roster.names(hung)} hangs: {why}")
    if starting := unsaid - members:
        why = f"has connected but was not ready within {secs:.0f} s"
        reasons.append(f"{of.roster.names(starting)} {why}")
    return "; ".join(reasons)
