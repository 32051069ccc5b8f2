"""How a training may end: it is done, unless too many were lost for long."""

from __future__ import annotations

from collections.abc import Sequence

from terngrad.cluster.channel import name_of
from terngrad.coordination.states import Rules
from terngrad.testing.simulation.laws import require
from terngrad.testing.simulation.ps import SimulatedPs
from terngrad.testing.simulation.worker import SimulatedWorker

_GOOD_ENDINGS = {
    "done",
    "dismissed",
    # All the others were done before it was here again, and the ps have ended.
    "a ps cannot be reached",
    *(f"ps {ps} did not come back" for ps in range(2)),
}


def check_ending(
    rules: Rules,
    servers: Sequence[SimulatedPs],
    workers: Sequence[SimulatedWorker | None],
    lost: set[int],
    live: set[int],
    told: str,
) -> None:
    """A training is done if enough workers were well; else the outcome names one that was lost.

    The outcome is the first one of ps 0. A ps may be killed after that and before it ends. The
    workers that it has told have ended then, as they must. A ps that starts later cannot know why
    they are missing, so its own outcome does not count.

    If the chief was lost and no worker that was well had the state, nobody could go on, however
    many there were. Then the outcome names the chief.

    Args:
      rules: of the training.
      servers: all ps, of which none was lost for long.
      workers: all, which have ended.
      lost: those that were at fault for long, or are gone.
      live: those that had the state of the training when ps 0 had that outcome.
      told: what happened, for messages.

    Raises:
      BrokenLawError: the training ended otherwise.
    """
    outcome, hosts = servers[0].first_outcome or "", servers[0].hosts
    well = {*range(len(workers))} - lost
    enough = 1 if rules.elastic else rules.needed
    is_stateless = 0 in lost and not well & live and name_of(0, hosts) in outcome
    if len(well) < enough or is_stateless:
        # No step within many time-outs: all hang, and none of them alone is named.
        is_named = not well or any(name_of(rank, hosts) in outcome for rank in lost)
        require(not outcome or is_named, f"the outcome names no worker that was lost: {told}")
        return
    failures = [outcome, *(ps.outcome for ps in servers)]
    require(not any(failures), f"a ps failed, though enough workers were well: {told}")
    endings = {rank: worker.ending for rank, worker in enumerate(workers) if worker}
    for rank in well:
        require(endings[rank] in _GOOD_ENDINGS, f"worker {rank} failed, though well: {told}")
