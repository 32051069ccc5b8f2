"""Whether there can be a new view, which workers it waits for, and who saves at the end."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from terngrad.exchange.parameter_server import groups
from terngrad.exchange.parameter_server.coordination.situation import Situation
from terngrad.exchange.parameter_server.coordination.transitions import JOINED
from terngrad.exchange.parameter_server.coordination.views import CHIEF

_GRACE_SECS = 5.0  # for workers to find a restarted ps


class Verdict(enum.Enum):
    """The decision on a new view of the workers that have reported their standings."""

    WAIT = "some standings are missing"
    INSTALL = "these workers make a view"
    DISMISS = "others are done, and these are too few or only want to join"
    TOO_FEW = "there are too few workers"
    NO_STATE = "no worker has the state"


def verdict(of: Situation) -> Verdict:
    """Decides on a new view from the workers' standings, in phase FORMING."""
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
    """Returns the workers whose standings a view still needs.

    It needs those of all members. If these are too few, or none of them has the state, it also
    needs those of the workers that are about to join: one of these may have the state.
    """
    standings = of.roster.standings
    too_few = len(standings) < of.rules.needed and not of.rules.elastic
    is_live = any(standing.is_live for standing in standings.values())
    asked = of.roster.able
    if of.view is not None and is_live and not too_few:
        asked &= of.members
    return asked - standings.keys()


def awaited(of: Situation) -> set[int]:
    """Returns the lost workers for which a view waits."""
    standings, recent = of.roster.standings, of.roster.recently_lost()
    live = [standing for standing in standings.values() if standing.is_live]
    if of.view is not None:
        # If no connected worker has the state, a lost one may have it.
        return recent if len(standings) < of.rules.needed or not live else set()
    known = {worker for standing in live for worker in groups.unpack(standing.members)}
    if known and len(live) >= of.rules.needed and of.clock() - of.began >= _GRACE_SECS:
        return set()  # after a restart of this ps, enough workers are connected
    return recent & known if known else recent


def enough_could_go_on(of: Situation, *, anew: bool) -> bool:
    """Whether the workers with a standing are enough and have the state.

    Args:
      of: the training.
      anew: whether the chief's checkpoint is enough. The others may have a newer state.
    """
    standings = of.roster.standings
    has_state = any(standing.is_live for standing in standings.values())
    has_state |= anew and CHIEF in standings
    return has_state and (of.rules.elastic or len(standings) >= of.rules.needed)


def are_enough(of: Situation) -> bool:
    """Returns whether the workers that have the state and a standing are enough for a step."""
    live = [standing for standing in of.roster.standings.values() if standing.is_live]
    return len(live) >= of.rules.needed


def saver(of: Situation, because_of: Iterable[int]) -> int | None:
    """Returns the first healthy worker that has the state; it saves when the training ends.

    Args:
      of: the training that ends.
      because_of: workers that are not healthy.
    """
    standings = of.roster.standings
    without = {worker for worker, standing in standings.items() if not standing.is_live}
    joined = of.roster.those(JOINED) - without - {*because_of}
    # A receiver may not have the whole state yet: it saves only if there is no other worker.
    lacking = {w for w in joined - standings.keys() if of.roster[w].lacks_state}
    return min(joined - lacking or joined, default=None)
