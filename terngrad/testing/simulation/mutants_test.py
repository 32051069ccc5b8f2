"""Mistakes that the laws must find: each replaces a function, and a few histories are explored.

A change of the code may change what happens in a history, and hide a mistake there. Then look for
another history: with the mistake in the code, `explore.py` names those that break a law.
"""

import pytest

from terngrad.coordination import decisions
from terngrad.coordination.coordinator import Coordinator
from terngrad.coordination.states import JOINED
from terngrad.exchange.parameter_server.server.answers import Answers
from terngrad.exchange.parameter_server.server.pieces import Piece
from terngrad.exchange.parameter_server.worker.servers import Servers
from terngrad.testing.simulation.cluster import TIMEOUT_SECS, SimulatedCluster
from terngrad.testing.simulation.explore import History
from terngrad.testing.simulation.laws import BrokenLawError

HISTORIES = 100  # that are explored for a mistake, at most


def save_without_the_state(state, because_of):
    return min(state.with_status(JOINED) - {*because_of}, default=None)


# Whose function the mistake replaces, its name, the mistake, and the first history to explore.
MUTANTS = {
    "a worker that contributed gets the sum of all": (Answers, "differ", lambda *_: False, 0),
    "a lost ps ends an elastic training": (Servers, "lose", lambda *_: False, 331),
    "only a coordination stream tells that all is done": (
        Coordinator,
        "note_done",
        lambda _: None,
        2400,
    ),
    "results stay": (Piece, "drop_results", lambda *_: 0, 0),
}
IN_CI = 2  # the others are more of the same


def explored(number):
    History(number).run()


def donor_killed(seed):
    """The chief starts again; its donor is killed, perhaps before it has given its state."""
    cluster = SimulatedCluster(workers=3, servers=1, needed=3, elastic=False, seed=seed)
    cluster.start()
    cluster.kill_worker(0, kept=0, has_saved=False)
    cluster.start_worker(0)
    cluster.deliver(40)
    cluster.kill_worker(1, kept=0, has_saved=False)
    cluster.run(1.2 * TIMEOUT_SECS)
    cluster.settle(restart=False)


def breaks_a_law(run, number):
    """Whether a law does not hold in a history."""
    try:
        run(number)
    except BrokenLawError:
        return True
    return False


def assert_breaks_a_law(run, first, monkeypatch, owner, name, mistake):
    """A history from a number on breaks a law with the mistake, and none without it."""
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, mistake)
        found = (i for i in range(first, first + HISTORIES) if breaks_a_law(run, i))
        broken = next(found, None)
    assert broken is not None
    assert not breaks_a_law(run, broken)


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(name, marks=[pytest.mark.exhaustive] if i >= IN_CI else [])
        for i, name in enumerate(MUTANTS)
    ],
)
def test_a_mistake_breaks_a_law(mutant, monkeypatch):
    owner, name, mistake, first = MUTANTS[mutant]
    assert_breaks_a_law(explored, first, monkeypatch, owner, name, mistake)


@pytest.mark.exhaustive
def test_a_saver_that_may_lack_the_state_breaks_a_law(monkeypatch):
    """Exploring finds this mistake too seldom."""
    mistake = decisions, "saver", save_without_the_state
    assert_breaks_a_law(donor_killed, 0, monkeypatch, *mistake)
