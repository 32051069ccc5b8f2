"""The next view, made from the workers' standings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from terngrad.exchange.parameter_server import groups
from terngrad.service.messages import Standing, View

CHIEF = 0  # has the state if no worker is live
_MOST_AHEAD = 10**11  # numbers of views count milliseconds: about three years
_MOST_AT_FIRST = 1 << 61  # the clock of a ps that starts again may be years behind the last one
MOST_STEPS = 1 << 62


def check(standing: Standing, number: int | None, workers: int) -> None:
    """Checks a worker's standing.

    Args:
      standing: the worker's report.
      number: number of the last view of this ps; None before the first.
      workers: number of workers of the training.

    Raises:
      ValueError: a number is out of range.
    """
    highest = _MOST_AT_FIRST if number is None else number + _MOST_AHEAD
    if standing.view > highest:
        raise ValueError(f"standing: view is {standing.view}; allowed is up to {highest}")
    if standing.steps > MOST_STEPS:
        raise ValueError(f"standing: steps is {standing.steps}; allowed is up to 2^62")
    groups.unpack(standing.members, workers)


def next_view(
    standings: Mapping[int, Standing], needed: int, number: int, lost_ps: Iterable[int] = ()
) -> View:
    """Returns the view of all workers with a standing.

    Args:
      standings: standings by worker; the chief or a live worker is among them.
      needed: number of members that make a step; fewer if the view is smaller.
      number: number of the last view of this ps.
      lost_ps: ps that some of them do without; the others take over their pieces.
    """
    members = sorted(standings)
    live = [worker for worker in members if standings[worker].is_live]
    # A worker that missed the last view may have made other steps than its members.
    newest = max((standings[w].view for w in live), default=0)
    sources = [w for w in live if standings[w].view == newest] or [CHIEF]
    steps = max(standings[w].steps for w in sources)
    current = [w for w in sources if standings[w].steps == steps]
    known = max(standing.view for standing in standings.values())
    return View(
        number=max(number, known) + 1,
        steps=steps,
        members=groups.pack(members),
        needed=min(needed, len(members)),
        donor=current[0],
        receivers=groups.pack([w for w in members if w not in current]),
        is_first=not live,
        lost_ps=groups.pack(lost_ps),
    )


def in_words(view: View) -> str:
    """Describes a view for the log."""
    members, receivers = groups.unpack(view.members), groups.unpack(view.receivers)
    verb = "trains" if len(members) == 1 else "train"
    text = f"{listed(members)} {verb} from step {view.steps} on"
    if view.needed < len(members):
        text += f", {view.needed} of them at each step"
    if lost := groups.unpack(view.lost_ps):
        text += f", without {listed(lost, 'ps', 'ps')}"
    if receivers:
        text += f"; worker {view.donor} gives its state to {listed(receivers)}"
    return f"{text[0].upper()}{text[1:]}."


def listed(members: Sequence[int], one: str = "worker", several: str = "workers") -> str:
    """Returns numbers as words, such as "workers 0 and 1"."""
    numbers = [str(member) for member in members]
    if len(numbers) == 1:
        return f"{one} {numbers[0]}"
    return f"{several} {', '.join(numbers[:-1])} and {numbers[-1]}"
