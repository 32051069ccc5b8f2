"""Mistakes that the laws must find: each is put into the code, and a few histories are explored.

A change of the code may change what happens in a history, and hide a mistake there. Then look for
another history: with the mistake in the code, `explore.py` names those that break a law.
"""

import inspect
import sys
import textwrap

import pytest

from terngrad.exchange.parameter_server.coordination import patience, quorum
from terngrad.exchange.parameter_server.coordination.roster import Roster
from terngrad.exchange.parameter_server.server.aggregator import Aggregator
from terngrad.exchange.parameter_server.server.answers import Answers
from terngrad.exchange.parameter_server.server.pieces import Piece
from terngrad.exchange.parameter_server.server.service import Service
from terngrad.exchange.parameter_server.worker.servers import Servers
from terngrad.exchange.parameter_server.worker.steps import Steps
from terngrad.testing.simulation.cluster import TIMEOUT_SECS, Cluster
from terngrad.testing.simulation.explore import History
from terngrad.testing.simulation.laws import BrokenLawError

HISTORIES = 100  # that are explored for a mistake, at most

# Where the mistake is, the text that it replaces, its own, and the first history to explore.
MUTANTS = {
    "nobody goes on without a lost worker": (
        patience,
        "_of_members",
        "rules.elastic or of.selection or enough",
        "False",
        190,
    ),
    "the others wait for a lost worker without end": (
        patience,
        "_of_members",
        "roster.gone() & of.members",
        "set()",
        190,
    ),
    "no worker is found to be late": (
        patience,
        "_of_members",
        "roster.able & {*of.standstill.late(now)}",
        "set()",
        800,
    ),
    "a training that is done begins anew": (
        quorum,
        "verdict",
        "of.some_are_done and (not is_live or too_few)",
        "False",
        1640,
    ),
    "only a Meet stream tells that all is done": (
        Service,
        "close_exchange",
        "self.coordinator.note_done()",
        "pass",
        2400,
    ),
    "what is left of a view stays": (
        Aggregator,
        "_forget",
        "is_over(key[0]) or ",
        "",
        7840,
    ),
    "a lost ps ends an elastic training": (
        Servers,
        "lose",
        "not self._elastic or ps == 0",
        "True",
        331,
    ),
    "each worker does without the ps that it has lost itself": (
        Roster,
        "lost_ps",
        "for worker in workers",
        "for worker in ()",
        418,
    ),
    "a worker does not add its part to a sum of the others": (
        Steps,
        "take",
        "operation.leaves_out_own and self._rank in contributors",
        "False",
        0,
    ),
    "a worker adds its part to a sum that it has no part in": (
        Steps,
        "take",
        " and self._rank in contributors",
        "",
        0,
    ),
    "a worker that contributed gets the sum of all": (
        Answers,
        "differ",
        "worker in self._others",
        "False",
        0,
    ),
    "results stay": (Piece, "drop_results", "len(self.results) > kept", "False", 0),
}


def mutated(function, old, new):
    """The function with another text in place of one of its own."""
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1
    found = {}
    exec(source.replace(old, new), vars(sys.modules[function.__module__]), found)
    return found[function.__name__]


def explored(number):
    History(number).run()


def donor_killed(seed):
    """The chief starts again; its donor is killed, perhaps before it has given its state."""
    cluster = Cluster(workers=3, servers=1, needed=3, elastic=False, seed=seed)
    cluster.start_ps(0)
    for worker in range(3):
        cluster.start_worker(worker)
    cluster.deliver(120)
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


def first_broken(run, first):
    """The first history from a number on that breaks a law; None if none of the next ones does."""
    return next((i for i in range(first, first + HISTORIES) if breaks_a_law(run, i)), None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "old", "new", "first"), MUTANTS.values(), ids=MUTANTS.keys()
)
def test_a_mistake_breaks_a_law(owner, name, old, new, first, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, mutated(getattr(owner, name), old, new))
        broken = first_broken(explored, first)
    assert broken is not None
    assert not breaks_a_law(explored, broken)


@pytest.mark.slow
def test_a_saver_that_may_lack_the_state_breaks_a_law(monkeypatch):
    """Exploring finds this mistake too seldom."""
    with monkeypatch.context() as patch:
        patch.setattr(
            quorum, "saver", mutated(quorum.saver, "joined - lacking or joined", "joined")
        )
        broken = first_broken(donor_killed, 0)
    assert broken is not None
    assert not breaks_a_law(donor_killed, broken)
