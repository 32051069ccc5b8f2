"""Whether there can be a new view: which workers are asked, which are waited for, and who saves."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from terngrad.exchange.parameter_server import groups
from terngrad.exchange.parameter_server.coordination.situation import Situation
from terngrad.exchange.parameter_server.coordination.transitions import JOINED
from terngrad.exchange.parameter_server.coordination.views import CHIEF

_GRACE_SECS = 5.0  # for workers to find a ps that was started again


class Verdict(enum.Enum):
    """What comes of the workers that say where they stand."""

    WAIT = "not all have said it"
    INSTALL = "they make a view"
    DISMISS = "others are done, and these are too few or only want to join"
    TOO_FEW = "they are too few"
    NO_STATE = "none of them has the state"


def verdict(of: Situation) -> Verdict:
    """What follows from where the workers stand; in phase FORMING."""
    if unsaid(of) or awaited(of):
        return Verdict.WAIT
    standings = of.roster.standings
    is_live = any(standing.is_live for standing in standings.values())
    too_few = len(standings) < of.rules.needed
    if of.some_are_done and (not is_live or too_few):
        return Verdict.DISMISS
    if not standings or (too_few and not of.rules.elastic):
        return Verdict.TOO_FEW
    return Verdict.INSTALL if is_live or CHIEF in standings else Verdict.NO_STATE


def unsaid(of: Situation) -> set[int]:
    """Workers that must say where they stand before there can be a view.

    Members must. Where these are too few, or none has the state, so must workers that are only
    about to join them: one of those may have it.
    """
    standings = of.roster.standings
    too_few = len(standings) < of.rules.needed and not of.rules.elastic
    is_live = any(standing.is_live for standing in standings.values())
    asked = of.roster.able
    if of.view is not None and is_live and not too_few:
        asked &= of.members
    return asked - standings.keys()


def awaited(of: Situation) -> set[int]:
    """Workers that are away, and for which a view waits."""
    standings, recent = of.roster.standings, of.roster.recently_lost()
    live = [standing for standing in standings.values() if standing.is_live]
    if of.view is not None:
        # Where nobody has the state, a worker that has it may be among the lost.
        return recent if len(standings) < of.rules.needed or not live else set()
    known = {worker for standing in live for worker in groups.unpack(standing.members)}
    if known and len(live) >= of.rules.needed and of.clock() - of.began >= _GRACE_SECS:
        return set()  # enough are here, after a restart of this ps
    return recent & known if known else recent


def enough_could_go_on(of: Situation) -> bool:
    """Whether those that stand somewhere have the state, and are enough."""
    standings = of.roster.standings
    is_live = any(standing.is_live for standing in standings.values())
    return is_live and (of.rules.elastic or len(standings) >= of.rules.needed)


def saver(of: Situation, because_of: Iterable[int]) -> int | None:
    """The first worker that has the state and is well; it saves when the training ends.

    Args:
      of: the training that ends.
      because_of: workers that are not well.
    """
    standings = of.roster.standings
    without = {worker for worker, standing in standings.items() if not standing.is_live}
    joined = of.roster.those(JOINED) - without - {*because_of}
    # A worker that was only given the state may not have it yet, and does not save then.
    lacking = {w for w in joined - standings.keys() if of.roster[w].lacks_state}
    return min(joined - lacking or joined, default=None)
