"""Workers that come and go while others train (backup workers).

One that leaves before its first step interrupts nobody. One that does so again and again is held
back: it joins only after a while, which grows, or when it is needed.
"""

from __future__ import annotations

from terngrad.exchange.parameter_server.coordination.situation import Situation
from terngrad.exchange.parameter_server.coordination.transitions import JOINED

_MOST_IDLE = 2  # visits without a contribution before a worker is held back
_FIRST_SECS, _LONGEST_SECS = 5.0, 600.0


def is_missed(of: Situation, worker: int) -> bool:
    """Returns whether a step may wait for a worker that leaves, though not all must make it."""
    if of.selection is None or worker not in of.members:
        return False
    return worker not in of.idle() or of.selection.has_heard(worker)


def is_idle(of: Situation, worker: int) -> bool:
    """Returns whether a worker that leaves was there in vain, though others could train."""
    visit = of.roster[worker].visit
    could_train = of.view is not None and of.rules.needed < len(of.roster)
    return could_train and visit.has_stood and not visit.has_contributed


def hold_secs(idle_visits: int) -> float:
    """Returns how long a worker is held back after so many idle visits in a row."""
    doublings = idle_visits - 1 - _MOST_IDLE
    return min(_LONGEST_SECS, _FIRST_SECS * 2.0 ** min(doublings, 10)) if doublings >= 0 else 0.0


def is_held(of: Situation, worker: int) -> bool:
    """Returns whether a worker must wait before it joins; it need not where it is needed."""
    if of.view is None or worker in of.roster.those(JOINED):
        return False
    others = of.roster.able & of.members - {worker}
    return len(others) >= of.rules.needed and of.clock() < of.roster[worker].held_until
