"""Training through parameter servers: who waits for whom, and who is refused (law 10)."""

import contextlib
import re
import signal

import pytest

from inception.cluster import members
from inception.testing.cluster import ProcessCluster
from inception.testing.runs import (
    commands_of,
    paced_flags_of,
)
from terngrad.testing.addresses import free_ports
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.processes import Started

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", name="alone")
def _alone(tmp_path_factory):
    """A cluster without worker 0: a worker with other rules came, then a signal to the ps."""
    folder = tmp_path_factory.mktemp("alone")
    with ProcessCluster(2, 1, *paced_flags_of(folder), absent=["0", "1"]) as cluster:
        cluster.wait_for("ps 0", "waits for 2 workers on this machine")
        cluster.start("1", "--num_replicas_to_aggregate=1")
        assert cluster.status("1") == 1, cluster.lines()
        cluster.kill("ps 0", signal.SIGTERM)
        cluster.status("ps 0")
    return cluster


def test_law_10_a_ps_with_other_rules_is_named(alone):
    rules = "its flags are num_replicas_to_aggregate=1, .*; this ps has num_replicas_t"
    assert re.search(rules, alone.runs["ps 0"].output)
    short = "its flags differ from those of this ps, whose log says how"
    assert short in alone.runs["1"].output


@pytest.mark.parametrize("servers", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_law_10_a_worker_started_by_hand_without_the_secret_learns_what_it_lacks(tmp_path, servers):
    program, flags = paced_flags_of(tmp_path, f"--worker_timeout_secs={HANG_SECS}")
    own = [member.flags for member in members.members(2, servers, free_ports)]
    with contextlib.ExitStack() as stack:
        commands = commands_of(program, flags, own)
        secret = {"TERNGRAD_SECRET": "a secret of many characters"}
        runs = [
            stack.enter_context(Started(command, secret if i != 1 else {}))
            for i, command in enumerate(commands)
        ]
        assert runs[1].finish() == 1
        text = "this training was started with a secret, which this process lacks: start it with"
        assert text in runs[1].lines[-1]


def test_a_signal_ends_a_ps_without_workers_cleanly(alone):
    alone.wait_for("ps 0", r"ps 0 \(.*\) ends: SIGTERM\.")
    assert alone.status("ps 0") == 0, alone.lines()


def test_law_10_workers_with_other_kernels_are_named(tmp_path):
    with ProcessCluster(2, 1, *paced_flags_of(tmp_path), absent=["1"]) as cluster:
        (command,) = commands_of(*paced_flags_of(tmp_path), [cluster.members["1"].flags])
        cluster.runs["1"] = Started(command, {"TERNGRAD_KERNELS": "reference"})
        for worker in ("0", "1"):
            cluster.wait_for(worker, r"kernels is reference on worker 1 \(.*\) and native on w")
            assert cluster.status(worker) == 1
        cluster.status("ps 0")
        assert "Traceback" not in cluster.lines()
