"""Loops of a user's own that go on while processes come and go."""

import contextlib
import re
import signal
import socket
import sys
import time

import pytest

from terngrad.cluster.managed import launch_variables
from terngrad.library.group import Group
from terngrad.library.joining import join
from terngrad.testing import processes
from terngrad.testing.certificates import make_launched_certificates
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.processes import Started

LOOP = [sys.executable, "-m", "terngrad.testing.programs.elastic_loop"]
STEPS = 150
TWO = {"hosts": ["127.0.0.1:1", "127.0.0.1:2"], "rank": 0}
PS = {"ps_hosts": ["127.0.0.1:3"]}


def cluster(steps, *arguments, workers=2, servers=1):
    """Runs of the workers and the servers, and what starts one of them again."""
    return processes.cluster([*LOOP, str(steps), *arguments], workers, servers)


@pytest.fixture(scope="module", name="alone")
def _alone():
    """The weights of one process of two nodes."""
    with Started([*LOOP, str(STEPS), "nodes=2"]) as run:
        return weights_of(run)


def weights_of(run):
    """The weights that a worker has at the end."""
    assert run.finish() == 0, run.output
    return re.search("weights ([0-9a-f]+)", run.output)[1]


def wait_for_step(run, step):
    """Waits until a worker has made at least so many steps."""
    deadline = time.monotonic() + HANG_SECS
    while not any(int(s) >= step for s in re.findall(r"step (\d+)\n", run.output)):
        assert time.monotonic() < deadline and run.process.poll() is None, run.output
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("servers", [0, 1])
def test_law_4_run_steps_gives_the_same_bits_where_nobody_comes_or_goes(alone, servers):
    with cluster(STEPS, "timeout_secs=20", servers=servers) as (runs, _):
        assert [weights_of(run) for run in runs[:2]] == [alone] * 2
        assert [run.finish() for run in runs[2:]] == [0] * servers


@pytest.mark.slow
def test_law_8_a_worker_that_is_killed_and_comes_back_changes_no_bit(alone):
    waits = f"timeout_secs={HANG_SECS:.0f}"
    with cluster(STEPS, "num_replicas_to_aggregate=2", waits) as (runs, start):
        wait_for_step(runs[0], 20)
        runs[1].process.send_signal(signal.SIGKILL)
        runs[1] = start(1)
        assert [weights_of(run) for run in runs[:2]] == [alone] * 2
        assert "step 1\n" not in runs[1].output
        assert runs[2].finish() == 0, runs[2].output


@pytest.mark.slow
def test_an_elastic_loop_goes_on_without_a_worker_and_takes_it_in_again():
    steps = 100_000
    with cluster(steps, "elastic=1", f"timeout_secs={HANG_SECS:.0f}") as (runs, start):
        wait_for_step(runs[0], 20)
        runs[1].process.send_signal(signal.SIGKILL)
        runs[2].wait_for(r"^Worker 0 trains from step \d+ on")
        runs[1] = start(1)
        runs[1].wait_for(r"^step [1-9]\d+$")
        assert "step 1" not in runs[1].lines  # it went on where the other was


@pytest.mark.slow
def test_law_10_a_worker_that_is_started_again_says_what_lets_it_join():
    with cluster(100_000, "slots=1", f"timeout_secs={HANG_SECS:.0f}") as (runs, start):
        wait_for_step(runs[0], 20)
        runs[1].process.send_signal(signal.SIGKILL)
        runs[1] = start(1)
        why = (
            "worker 1 of 2 was started again while the others make steps, and the loop does not "
            "let it join them: needs join(..., elastic=True) or num_replicas_to_aggregate=2 on "
            "all, and Group.run_steps"
        )
        for run in runs:
            assert run.finish() != 0
            assert why in run.output


@pytest.mark.slow
def test_all_reduce_goes_on_without_a_worker_and_takes_it_in_again():
    with cluster(100_000, "elastic=1", f"timeout_secs={HANG_SECS:.0f}", servers=0) as (runs, start):
        wait_for_step(runs[0], 20)
        runs[1].process.send_signal(signal.SIGKILL)
        runs[0].wait_for(r"^Worker 0 trains from step \d+ on")  # not after the time-out
        runs[1] = start(1)
        runs[1].wait_for(r"^step [1-9]\d+$")
        assert "step 1" not in runs[1].lines  # it went on where the other was
        joined = int(re.findall(r"train from step (\d+) on", runs[0].output)[-1])
        wait_for_step(runs[1], joined + 100)  # some seconds
        views = re.findall(r"^(Workers? .*) trains? from step", runs[0].output, re.MULTILINE)
        assert views == ["Workers 0 and 1", "Worker 0", "Workers 0 and 1"]  # each event makes one


@pytest.mark.slow
def test_all_reduce_goes_on_without_its_first_worker_and_takes_it_in_again():
    timeout = f"timeout_secs={HANG_SECS:.0f}"
    with cluster(100_000, "elastic=1", timeout, workers=3, servers=0) as (runs, start):
        for run in runs:
            wait_for_step(run, 20)
        runs[0].process.send_signal(signal.SIGKILL)
        runs[1].wait_for(r"^worker 1 .*coordinates from now on, instead of worker 0")
        runs[1].wait_for(r"^Workers 1 and 2 train from step \d+ on")
        runs[0] = start(0)
        runs[0].wait_for(r"^step [1-9]\d+$")
        assert "step 1" not in runs[0].lines  # it went on where the others were
        runs[1].process.send_signal(signal.SIGKILL)  # it coordinated
        runs[0].wait_for(r"^worker 0 .*coordinates from now on, instead of worker 1")
        runs[2].process.send_signal(signal.SIGKILL)
        runs[0].wait_for(r"^Worker 0 trains from step \d+ on\.$")


@pytest.mark.slow
def test_all_reduce_goes_on_without_its_first_worker_over_encrypted_connections(
    tmp_path, monkeypatch
):
    make_launched_certificates(tmp_path)
    monkeypatch.setenv(launch_variables.CERTIFICATES, str(tmp_path))
    timeout = f"timeout_secs={HANG_SECS:.0f}"
    with cluster(100_000, "elastic=1", timeout, servers=0) as (runs, start):
        wait_for_step(runs[1], 20)
        runs[0].process.send_signal(signal.SIGKILL)
        runs[1].wait_for(r"^Worker 1 trains from step \d+ on")
        runs[0] = start(0)
        runs[0].wait_for(r"^step [1-9]\d+$")
        assert "step 1" not in runs[0].lines


@pytest.mark.slow
def test_an_elastic_training_waits_for_its_least_size_saves_and_ends():
    arguments = "elastic=1", "min_size=2", "elastic_wait_secs=1", f"timeout_secs={HANG_SECS:.0f}"
    with cluster(100_000, *arguments, servers=0) as (runs, _):
        wait_for_step(runs[0], 20)
        runs[1].process.send_signal(signal.SIGKILL)
        assert runs[0].finish() != 0
        assert re.search(r"after \d+ s 1 of at least 2 workers have joined", runs[0].output)


@pytest.mark.slow
def test_law_8_a_killed_worker_of_all_reduce_comes_back_without_a_change_of_bits(alone):
    arguments = "num_replicas_to_aggregate=2", f"timeout_secs={HANG_SECS:.0f}"
    with cluster(STEPS, *arguments, servers=0) as (runs, start):
        for rank in (1, 0):  # the chief too
            wait_for_step(runs[1 - rank], 20 * (2 - rank))
            runs[rank].process.send_signal(signal.SIGKILL)
            runs[rank] = start(rank)
        assert [weights_of(run) for run in runs] == [alone] * 2


@pytest.mark.slow
def test_law_10_a_port_that_is_taken_is_named():
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        hosts = [f"127.0.0.1:{taken.getsockname()[1]}", "127.0.0.1:1"]
        with pytest.raises(ValueError, match=r"^join: hosts: cannot listen at "):
            join(hosts, rank=0, elastic=True)


@pytest.mark.slow
def test_a_worker_that_is_behind_gets_the_state_of_the_others():
    arguments = "num_replicas_to_aggregate=1", f"timeout_secs={HANG_SECS:.0f}"
    with cluster(4 * STEPS, *arguments) as (runs, _):
        for run in runs[:2]:
            wait_for_step(run, 20)
        runs[1].process.send_signal(signal.SIGSTOP)
        wait_for_step(runs[0], STEPS)
        runs[1].process.send_signal(signal.SIGCONT)
        assert weights_of(runs[0]) == weights_of(runs[1])
        assert runs[2].finish() == 0, runs[2].output
        assert "train from step 0 on, 1 of them at each step" in runs[2].output


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (
            TWO | {"num_replicas_to_aggregate": 3},
            "join: num_replicas_to_aggregate is 3: allowed are 1 to 2, the number of workers",
        ),
        (
            TWO | {"elastic": True, "min_size": 3},
            "join: min_size is 3: allowed are 1 to 2, the number of workers",
        ),
        (TWO | {"min_size": 2}, "join: min_size is 2: needs elastic"),
        (TWO | {"elastic_wait_secs": 30}, "join: elastic_wait_secs is 30: needs elastic"),
        (
            TWO | {"elastic": True, "elastic_wait_secs": 0},
            "join: elastic_wait_secs is 0: allowed are more than 0",
        ),
        (
            {"hosts": ["a:1", "b:2"], "rank": 0, "elastic": True},
            "join: hosts: a:1 is not on this machine: needs tls",
        ),
        (
            TWO | PS | {"num_replicas_to_aggregate": 3},
            "join: num_replicas_to_aggregate is 3: allowed are 1 to 2, the number of workers",
        ),
        (
            TWO | PS | {"num_replicas_to_aggregate": 0},
            "join: num_replicas_to_aggregate is 0: allowed are 1 to 2",
        ),
    ],
)
def test_law_10_rules_that_do_not_fit_are_named(arguments, why):
    with pytest.raises(ValueError, match=why):
        join(**arguments)


@pytest.mark.parametrize("call", ["barrier", "all_gather", "all_reduce", "broadcast"])
def test_law_10_collective_calls_are_refused_in_elastic_groups(call):
    group = Group(0, 1, is_elastic=True)
    given = {"barrier": (), "broadcast": ([],)}.get(call, (1,))
    with pytest.raises(ValueError, match=f"{call}: not with elastic or num_replicas_to_aggregate"):
        getattr(group, call)(*given)
