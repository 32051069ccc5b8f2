"""Elastic all-reduce: random histories, and mistakes that they find."""

import numpy as np
import pytest

from terngrad.coordination import decisions
from terngrad.coordination.coordinator import TAKES_OVER
from terngrad.coordination.decisions import listed
from terngrad.exchange.parameter_server.server.service import Service
from terngrad.testing.simulation import explore
from terngrad.testing.simulation.laws import BrokenLawError
from terngrad.testing.simulation.mesh import MeshEnd, MeshWorker
from terngrad.testing.simulation.own_servers import OwnServersCluster

HISTORIES = 300  # that are explored for a mistake, at most


def explored(number):
    history = explore.OwnServersHistory(number)
    history.run()
    return history


def test_no_history_breaks_a_law(capsys):
    assert explore.main(["--histories=60", "--own_servers"]) == 0, capsys.readouterr().out


def test_a_worker_alone_that_cannot_reach_its_own_ps_goes_on(capsys):
    arguments = ["--histories=1", "--first=9402418", "--own_servers"]
    assert explore.main(arguments) == 0, capsys.readouterr().out


@pytest.mark.exhaustive
def test_no_history_of_many_breaks_a_law(capsys):
    arguments = ["--histories=4000", "--first=201000", "--own_servers"]
    assert explore.main(arguments) == 0, capsys.readouterr().out


def training(workers=3, seed=1, **arguments):
    """A cluster whose workers make steps."""
    cluster = OwnServersCluster(workers, workers, seed, **arguments)
    for worker in range(workers):
        cluster.start_worker(worker)
    while not all(worker.is_live for worker in cluster.workers):
        cluster.run(1.0)
    return cluster


def lines(cluster):
    return [line for server in cluster.servers for line in server.log]


def test_a_lost_first_worker_returns_to_the_coordinator_that_replaced_it():
    cluster = training()
    cluster.kill_worker(0, kept=0, has_saved=False)
    while not any(TAKES_OVER in line for line in lines(cluster)):
        cluster.run(1.0)
    cluster.settle(restart=True)
    took_over = f"worker 1 (host1:1) {TAKES_OVER} worker 0 (host0:1)."
    assert took_over in lines(cluster)
    assert {worker.ending for worker in cluster.workers} <= {"done", "dismissed"}


def test_the_last_worker_goes_on_alone_where_the_others_have_ended():
    cluster = training()
    for rank in (0, 1):
        cluster.kill_worker(rank, kept=0, has_saved=False)
    cluster.settle(restart=False)
    assert cluster.workers[2].ending == "done"
    assert any("Worker 2 trains from step" in line for line in lines(cluster))


def test_the_smaller_side_of_a_network_partition_makes_no_step():
    cluster = training(workers=5)
    cluster.partition((3, 4))
    cluster.run(12.0)
    before = [worker.state.steps for worker in cluster.workers]
    cluster.run(90.0)
    after = [worker.state.steps for worker in cluster.workers]
    assert after[3:] == before[3:]
    assert all(worker.ending == "done" for worker in cluster.workers[:3])


def views(cluster):
    return [line for line in lines(cluster) if " from step " in line]


@pytest.mark.parametrize("has_mesh", [True, False])
@pytest.mark.parametrize(("workers", "lost"), [(2, 1), (3, 0), (3, 2), (5, 2)])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_loss_makes_one_view_and_so_does_a_return(workers, lost, seed, has_mesh):
    cluster = training(workers, seed, steps=10_000, has_mesh=has_mesh)
    cluster.kill_worker(lost, kept=seed, has_saved=False)
    cluster.run(40.0)
    cluster.start_worker(lost)
    while not (cluster.workers[lost] and cluster.workers[lost].is_live):
        cluster.run(1.0)
    cluster.run(20.0)
    others = [worker for worker in range(workers) if worker != lost]
    made = [line.lower().partition(" train")[0] for line in views(cluster)]
    assert made == [listed(range(workers)), listed(others), listed(range(workers))]


# Whose function the mistake replaces, its name, the mistake, and the first history to explore.
MUTANTS = {
    "a group of any size goes on": (decisions, "too_few_to_go_on", lambda state: "", 100),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mistake_breaks_a_law(mutant, monkeypatch):
    owner, name, mistake, first = MUTANTS[mutant]
    monkeypatch.setattr(owner, name, mistake)
    with pytest.raises(BrokenLawError):
        for number in range(first, first + HISTORIES):
            explored(number)


def steps_while_one_is_frozen():
    """Steps of the others, before and after they have noticed it."""
    cluster = training(steps=10_000)
    cluster.freeze(2)
    cluster.run(40.0)
    before = [worker.state.steps for worker in cluster.workers[:2]]
    cluster.run(20.0)
    return before, [worker.state.steps for worker in cluster.workers[:2]]


def test_the_others_give_up_the_step_of_a_frozen_worker_and_go_on():
    before, after = steps_while_one_is_frozen()
    assert after[0] > before[0] and after[1] > before[1]


def test_they_do_not_where_a_step_is_never_given_up(monkeypatch):
    monkeypatch.setattr(MeshWorker, "_end_soon", lambda worker: None)
    before, after = steps_while_one_is_frozen()
    assert after == before


def steps_after_searches_apart():
    """Steps of two workers that have looked for a coordinator apart, before and after they meet."""
    cluster = training(steps=10_000)
    cluster.freeze(0)
    cluster.partition((2,))  # so it asks its own ps, and worker 1 that of worker 1
    cluster.run(45.0)
    cluster.release()
    before = [worker.state.steps for worker in cluster.workers[1:]]
    cluster.run(60.0)
    return before, [worker.state.steps for worker in cluster.workers[1:]]


def test_workers_that_looked_for_a_coordinator_apart_find_the_same_one():
    before, after = steps_after_searches_apart()
    assert after[0] > before[0] and after[1] > before[1]


def test_they_do_not_where_a_search_is_not_reported_to_the_others(monkeypatch):
    monkeypatch.setattr(Service, "_note_search", lambda *given: None)
    before, after = steps_after_searches_apart()
    assert after == before


def test_a_worker_that_updates_without_all_sums_breaks_a_law(monkeypatch):
    results = MeshEnd.results

    def some_results(mesh):
        use = mesh._use
        mesh._sums[use] = {**dict.fromkeys(mesh._members, np.zeros(3, np.int32)), **mesh._sums[use]}
        mesh._codes[use] = {**dict.fromkeys(mesh._members, None), **mesh._codes[use]}
        return results(mesh)

    monkeypatch.setattr(MeshEnd, "results", some_results)
    with pytest.raises(BrokenLawError):
        training().run(100.0)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_all_members_that_live_end_a_view_at_the_same_step(seed):
    cluster = training(workers=3, seed=seed, steps=10_000)
    for _ in range(3):
        cluster.kill_worker(2, kept=0, has_saved=False)
        cluster.run(15.0)
        before = cluster.workers[0].state.steps
        cluster.start_worker(2)
        while not (cluster.workers[2] and cluster.workers[2].is_live):
            cluster.run(1.0)
        reported = [line for line in lines(cluster) if "Workers 0, 1 and 2 train" in line][-1]
        assert reported.endswith("gives its state to worker 2."), reported  # and to nobody else
        assert cluster.workers[0].state.steps >= before


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_worker_that_has_come_back_counts_in_a_later_network_partition(seed):
    cluster = training(seed=seed, steps=10_000)
    cluster.kill_worker(2, kept=0, has_saved=False)
    cluster.run(15.0)
    cluster.start_worker(2)
    while not (cluster.workers[2] and cluster.workers[2].is_live):
        cluster.run(1.0)
    cluster.run(10.0)
    cluster.partition((0,))
    cluster.run(60.0)  # a law says that no two sides make steps
    steps = [worker.state.steps for worker in cluster.workers]
    cluster.run(20.0)
    after = [worker.state.steps for worker in cluster.workers]
    assert after[0] == steps[0] and after[1] > steps[1]
