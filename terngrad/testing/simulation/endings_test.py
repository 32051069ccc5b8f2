"""Which endings of a simulated training are mistakes."""

from types import SimpleNamespace

import pytest

from terngrad.coordination.states import Rules
from terngrad.testing.simulation.cluster import TIMEOUT_SECS, SimulatedCluster, check_ending
from terngrad.testing.simulation.laws import BrokenLawError

HOSTS = ["host0:1", "host1:1"]
ALL_NEEDED, ELASTIC = Rules(2, False, 10.0), Rules(2, True, 10.0)
LOSS = "worker 1 (host1:1) died, and did not come back within 10 s"
NO_STATE = "worker 0 (host0:1) did not join, and no other worker has the state"


def check(rules, lost, first_outcome, *endings, outcome=None, live=()):
    outcome = first_outcome if outcome is None else outcome
    servers = [SimpleNamespace(first_outcome=first_outcome, outcome=outcome, hosts=HOSTS)]
    workers = [ending and SimpleNamespace(ending=ending) for ending in endings]
    check_ending(rules, servers, workers, lost, {*live}, "")


@pytest.mark.parametrize(
    ("rules", "lost", "first", "endings", "more"),
    [
        (ALL_NEEDED, set(), LOSS, ("done", "done"), {"outcome": ""}),
        (ALL_NEEDED, set(), "", ("done", "done"), {"outcome": LOSS}),
        (ELASTIC, {0}, NO_STATE, (None, "failed"), {"live": {1}}),
    ],
    ids=["only the first ps ends", "only a later ps ends", "another worker has the state"],
)
def test_a_training_that_could_go_on_does_not_end(rules, lost, first, endings, more):
    with pytest.raises(BrokenLawError, match="though enough workers were well"):
        check(rules, lost, first, *endings, **more)


@pytest.mark.parametrize(
    ("rules", "lost", "outcome", "endings", "text"),
    [
        (ALL_NEEDED, set(), LOSS, (LOSS, LOSS), "though enough workers were well"),
        (ALL_NEEDED, {0}, LOSS, (None, LOSS), "names no worker that was lost"),
        (ELASTIC, {1}, LOSS, (LOSS, None), "though enough workers were well"),
        (ELASTIC, {1}, "", ("refused", None), "worker 0 failed, though well"),
    ],
    ids=["nobody was lost", "another was lost", "elastic", "one fails"],
)
def test_another_ending_is_a_mistake(rules, lost, outcome, endings, text):
    with pytest.raises(BrokenLawError, match=text):
        check(rules, lost, outcome, *endings)


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_the_last_state_is_saved_though_worker_0_came_back_and_makes_no_step(seed, is_killed):
    cluster = SimulatedCluster(workers=3, servers=1, needed=2, elastic=False, seed=seed, steps=60)
    cluster.start()
    cluster.kill_worker(0, kept=0, has_saved=False)
    cluster.start_worker(0)
    while not cluster.workers[0].is_live:
        cluster.deliver(1)
    cluster.hang(0)
    while min(cluster.workers[worker].state.steps for worker in (1, 2)) < 60:
        cluster.run(1.0)
    cluster.run(2 * TIMEOUT_SECS)  # it compiles
    assert not any(worker.ending for worker in cluster.workers)
    if is_killed:
        cluster.kill_worker(0, kept=0, has_saved=False)
    cluster.settle(restart=False)
    assert [worker and worker.ending for worker in cluster.workers[1:]] == ["done", "done"]
