"""What is done about something that has not happened for too long."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from terngrad.cluster.pulse import HOPELESS
from terngrad.exchange.parameter_server.coordination import quorum
from terngrad.exchange.parameter_server.coordination.situation import Situation
from terngrad.exchange.parameter_server.coordination.transitions import Phase, Status


@dataclasses.dataclass(frozen=True)
class End:
    """The training ends.

    Attributes:
      why: for this reason; "" if it is done.
      because_of: workers that are at fault, and do not save.
    """

    why: str
    because_of: Iterable[int] = ()


@dataclasses.dataclass(frozen=True)
class Ask:
    """All members say where they stand.

    Attributes:
      abandoned: workers without which the others go on, because they hang.
      why: for this reason.
    """

    abandoned: Iterable[int] = ()
    why: str = ""


Remedy = End | Ask


def remedy(of: Situation) -> Remedy | None:
    """What is to be done now; None if all that should happen may still do so."""
    if of.some_are_done and not of.roster.able and not of.roster.recently_lost():
        return End("")  # the others had only to take their leave
    if of.view is None and (found := _of_the_start(of)):
        return found
    if of.phase is Phase.FORMING:
        return _of_forming(of)
    return _of_members(of) if of.view is not None else None


def _of_the_start(of: Situation) -> Remedy | None:
    """Ends what cannot begin any more."""
    gone = of.roster.gone()
    needed = 1 if of.rules.elastic else of.rules.needed
    return End(of.roster.missing(gone)) if gone and len(of.roster) - len(gone) < needed else None


def _of_members(of: Situation) -> Remedy | None:
    now, roster, rules = of.clock(), of.roster, of.rules
    if gone := roster.gone() & of.members:
        if of.some_are_done and not roster.able:
            return None  # a worker that was lost since may come back, to learn that all is done
        enough = len(roster.able) >= rules.needed  # with workers that are about to join
        may_go_on = rules.elastic or of.selection or enough
        return Ask() if may_go_on else End(roster.missing(gone))
    if of.standstill.is_hopeless(now):
        return End(f"no worker made a step for {of.standstill.hopeless_secs:g} s")
    if late := roster.able & {*of.standstill.late(now)}:
        why = f"no next batch for {rules.timeout_secs:g} s, for which the others wait"
        left = roster.here & of.members - late
        if rules.elastic or len(left) >= rules.needed:
            return Ask(late, why)
        return End(f"{roster.names(late)}: {why}", late)
    return None


def _of_forming(of: Situation) -> Remedy | None:
    waited, limit = of.clock() - of.since, of.rules.timeout_secs
    unsaid, is_hopeless = quorum.unsaid(of), waited > HOPELESS * limit
    # Workers within a step hang; those that compile or save may take as long as it takes.
    behind = unsaid if is_hopeless else unsaid & {*of.standstill.stuck(of.clock())}
    if behind and waited > limit and quorum.enough_could_go_on(of):
        return Ask(behind, f"does not say where it stands for {waited:.0f} s")
    if unsaid and is_hopeless:
        return End(_why_not_formed(of, unsaid, waited), unsaid)
    if not of.roster.here and not quorum.awaited(of):
        return End(of.roster.missing(of.roster.away))
    return None


def _why_not_formed(of: Situation, unsaid: set[int], secs: float) -> str:
    members = of.members if of.view else {*range(len(of.roster))}
    reasons = []
    if lost := of.roster.gone() & of.members - of.roster.those({Status.HUNG}):
        reasons.append(of.roster.missing(lost))
    if hung := unsaid & members:
        why = f"hangs, nothing was heard of a step for {secs:.0f} s"
        reasons.append(f"{of.roster.names(hung)}: {why}")
    if starting := unsaid - members:
        why = f"is here, and was not ready within {secs:.0f} s"
        reasons.append(f"{of.roster.names(starting)} {why}")
    return "; ".join(reasons)
