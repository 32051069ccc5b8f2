"""Random histories of a cluster: no worker breaks a law, and live workers make progress.

Workers and ps run in one process and in virtual time. Streams are queues. Hypothesis decides when
messages arrive, and which processes are killed, hang, stop or start again. The tests run the
same histories each time. To explore new ones, run in this folder:

    TERNGRAD_HISTORIES=10000 python -m pytest --timeout=0 cluster_state_machine_test.py -k many

`explore.py` draws histories of the same kind without hypothesis, in a third of the time.
docs/development.md says what it has explored and found.
"""

import os

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from terngrad.testing.simulation.cluster import TIMEOUT_SECS, Cluster

CHOSEN = os.environ.get("TERNGRAD_HISTORIES")
FEW, MANY = 300, int(CHOSEN or 1500)  # histories
MOST_WORKERS, MOST_PS = 3, 2

WORKERS = st.integers(0, MOST_WORKERS - 1)
SERVERS = st.integers(0, MOST_PS - 1)
KEPT = st.integers(0, 5)
METHODS = st.sampled_from(["Meet", "Exchange"])
SHORT_SECS = st.sampled_from([1.0, 2.0, 3.0])
LONG_SECS = st.sampled_from([0.8 * TIMEOUT_SECS, 1.2 * TIMEOUT_SECS, 11 * TIMEOUT_SECS])


class ClusterMachine(RuleBasedStateMachine):
    """Events of a cluster; indices count modulo the number of workers or ps."""

    @initialize(
        workers=st.integers(1, MOST_WORKERS),
        servers=st.integers(1, MOST_PS),
        spare=st.integers(0, MOST_WORKERS - 1),
        elastic=st.booleans(),
        seed=st.integers(0, 1 << 32),
        restart=st.booleans(),
        restart_ps=st.booleans(),
        late=st.none() | WORKERS,
    )
    def begin(self, workers, servers, spare, elastic, seed, restart, restart_ps, late):
        self.workers, self.servers = workers, servers
        self.restarts = {"restart": restart, "restart_ps": restart_ps}
        self.cluster = Cluster(workers, servers, max(1, workers - spare), elastic, seed)
        for ps in range(servers):
            self.cluster.start_ps(ps)
        for worker in range(workers):
            if worker != late:
                self.cluster.start_worker(worker)

    @rule(count=st.integers(1, 40))
    def let_things_happen(self, count):
        self.cluster.deliver(count)

    @rule(seconds=SHORT_SECS)
    def pass_time(self, seconds):
        self.cluster.run(seconds)

    @rule(seconds=LONG_SECS)
    def pass_much_time(self, seconds):
        self.cluster.run(seconds)

    @rule(worker=WORKERS)
    def start_worker(self, worker):
        self.cluster.start_worker(worker % self.workers)

    @rule(worker=WORKERS, kept=KEPT, has_saved=st.booleans())
    def kill_worker(self, worker, kept, has_saved):
        self.cluster.kill_worker(worker % self.workers, kept, has_saved)

    @rule(worker=WORKERS)
    def hang(self, worker):
        self.cluster.hang(worker % self.workers)

    @rule(worker=WORKERS)
    def stop(self, worker):
        self.cluster.stop(worker % self.workers)

    @rule(worker=WORKERS)
    def wake(self, worker):
        self.cluster.wake(worker % self.workers)

    @rule(ps=SERVERS)
    def start_ps(self, ps):
        self.cluster.start_ps(ps % self.servers)

    @rule(ps=SERVERS, kept=KEPT)
    def kill_ps(self, ps, kept):
        self.cluster.kill_ps(ps % self.servers, kept)

    @rule(ps=SERVERS)
    def stop_ps(self, ps):
        self.cluster.stop_ps(ps % self.servers)

    @rule(ps=SERVERS)
    def wake_ps(self, ps):
        self.cluster.wake_ps(ps % self.servers)

    @rule(worker=WORKERS, ps=SERVERS, method=METHODS)
    def delay(self, worker, ps, method):
        self.cluster.stick(worker % self.workers, ps % self.servers, method)

    @rule()
    def release(self):
        self.cluster.release()

    @rule(worker=WORKERS, ps=SERVERS, method=METHODS, kept_up=KEPT, kept_down=KEPT)
    def break_stream(self, worker, ps, method, kept_up, kept_down):
        self.cluster.cut(worker % self.workers, ps % self.servers, method, kept_up, kept_down)

    def teardown(self):
        if hasattr(self, "cluster"):
            self.cluster.settle(**self.restarts)


def explore(histories):
    run_state_machine_as_test(
        ClusterMachine,
        settings=settings(
            max_examples=histories,
            derandomize=not CHOSEN,
            stateful_step_count=20,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink],
            database=None,
        ),
    )


@pytest.mark.slow
def test_no_history_of_a_few_breaks_a_law():
    explore(FEW)


@pytest.mark.exhaustive
def test_no_history_of_many_breaks_a_law():
    explore(MANY)
