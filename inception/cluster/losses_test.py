"""Training through parameter servers: how a process that does not come back ends the others."""

import re
import signal
import time

import pytest

from inception.testing.cluster import ProcessCluster
from inception.testing.runs import (
    LONGER,
    assert_equal_parameters,
    paced_flags_of,
    parameters,
    train,
)

LOST_PS_STEPS = 600

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("victim", "how"), [("ps 0", signal.SIGKILL), ("ps 1", signal.SIGSTOP)])
def test_a_ps_that_does_not_come_back_is_named_and_ends_all(tmp_path, victim, how):
    with ProcessCluster(2, 2, *paced_flags_of(tmp_path, "--worker_timeout_secs=15")) as cluster:
        cluster.wait_for("0", r"Worker 0: .* step 10,")
        cluster.kill(victim, how)
        for worker in ("0", "1"):
            lost = rf"^worker {worker} .* ends: {victim} \(.*did not come back"
            saved = r".*; saved .*/model.ckpt-\d+$" if worker == "0" else ""
            cluster.wait_for(worker, lost + saved)
            assert cluster.status(worker) == 1
        other = "ps 1" if victim == "ps 0" else "ps 0"
        assert cluster.status(other) == 1, cluster.lines()
        assert "Traceback" not in cluster.lines()


def test_law_8_who_is_asked_to_end_while_another_is_lost_saves_at_once_and_ends(
    tmp_path, undisturbed
):
    flags = paced_flags_of(tmp_path, "--worker_timeout_secs=200", steps=LONGER)
    with ProcessCluster(3, 1, *flags) as cluster:
        cluster.wait_for("0", r"Worker 0: .* step 10,")
        cluster.kill("1")
        cluster.wait_for("ps 0", r"^worker 1 .* died")
        cluster.kill("0", signal.SIGTERM)
        saved = r"saved \S+/model.ckpt-[1-9]\d*"
        first = cluster.wait_for("0", rf"^SIGTERM: {saved}; waits for the step under way\.$")
        why = "worker 0 was asked to end by SIGTERM, and waits in vain"
        last = cluster.wait_for("0", rf"^SIGTERM: {why}; {saved}\.$")
        assert re.search(saved, first)[0] == re.search(saved, last)[0]
        assert cluster.status("0") == 128 + signal.SIGTERM
        cluster.wait_for("ps 0", rf"ps 0 .* ends: {why}")
        assert "Traceback" not in cluster.lines()
    resumed = train(1, tmp_path, net="mlp", batch_size=6, nodes=3, steps=LONGER)
    assert_equal_parameters(resumed, undisturbed)


def test_an_elastic_training_keeps_its_bits_when_a_ps_is_lost_repeatedly(tmp_path, monkeypatch):
    full_speed = tmp_path / "full_speed"
    monkeypatch.setenv("FULL_SPEED", str(full_speed))
    flags = paced_flags_of(
        tmp_path / "disturbed", "--worker_timeout_secs=12", "--elastic", steps=LOST_PS_STEPS
    )
    with ProcessCluster(2, 2, *flags) as cluster:
        cluster.wait_for("0", r"Worker 0: .* step 10,")
        cluster.kill("ps 1")
        cluster.wait_for("ps 0", r"^Workers 0 and 1 train from step \d+ on, without ps 1\.$")
        cluster.start("ps 1")
        gives = r"(; worker \d gives its state to worker \d)?\.$"  # if one is a step ahead
        cluster.wait_for("ps 0", r"^Workers 0 and 1 train from step [1-9]\d* on" + gives)
        cluster.kill("ps 1")
        full_speed.touch()
        cluster.finish("0", "1", "ps 0")
    settings = {"net": "mlp", "batch_size": 4, "nodes": 2, "steps": LOST_PS_STEPS}
    undisturbed = train(1, tmp_path / "undisturbed", **settings)
    assert_equal_parameters(parameters(tmp_path / "disturbed", LOST_PS_STEPS), undisturbed)


def test_an_elastic_training_takes_a_worker_in_again_while_a_ps_is_lost(tmp_path):
    flags = paced_flags_of(tmp_path, "--worker_timeout_secs=12", "--elastic", steps=100_000)
    with ProcessCluster(2, 2, *flags) as cluster:
        cluster.wait_for("0", r"Worker 0: .* step 10,")
        cluster.kill("ps 1")
        cluster.wait_for("ps 0", r"^Workers 0 and 1 train from step \d+ on, without ps 1\.$")
        cluster.kill("1")
        cluster.wait_for("ps 0", r"^Worker 0 trains from step \d+ on, without ps 1\.$")
        cluster.start("1")  # it joins without the ps, and without a wait for it
        gives = r"on, without ps 1; worker 0 gives its state to worker 1\.$"
        joined = cluster.wait_for("ps 0", r"^Workers 0 and 1 train from step \d+ " + gives)
        made = cluster.wait_for("1", r"^Worker 1: .* step \d+,")
        assert (
            int(re.search(r"step (\d+),", made)[1]) > int(re.search(r"step (\d+)", joined)[1]) > 0
        )
        assert "Traceback" not in cluster.lines()


def test_an_elastic_all_reduce_goes_on_without_a_worker_and_takes_it_in_again(tmp_path):
    flags = paced_flags_of(tmp_path, "--worker_timeout_secs=200", "--elastic", steps=100_000)
    with ProcessCluster(3, 0, *flags) as cluster:
        cluster.wait_for("0", r"Worker 0: .* step 10,")
        cluster.kill("1")
        cluster.wait_for("0", r"^Workers 0 and 2 train from step \d+ on\.$")
        cluster.start("1")
        gives = r"; worker \d gives its state to .*\.$"
        cluster.wait_for("0", r"^Workers 0, 1 and 2 train from step [1-9]\d* on.*" + gives)
        cluster.wait_for("1", r"^Worker 1: .* step \d+,")
        cluster.kill("1", signal.SIGTERM)  # as a scheduler does that needs the machine
        cluster.wait_for("1", r"^SIGTERM: left after step \d+; the same command joins")
        assert cluster.status("1") == 128 + signal.SIGTERM
        cluster.wait_for("0", r"^Workers 0 and 2 train from step [1-9]\d* on")
        cluster.kill("0", signal.SIGTERM)
        left = r"^SIGTERM: left after step \d+; saved .*model\.ckpt-\d+; the same command joins"
        cluster.wait_for("0", left)
        cluster.wait_for("2", r"^Worker 2 trains from step [1-9]\d* on\.$")
        cluster.start("0")
        cluster.wait_for("0", r"^Worker 0: .* step \d+,")
        assert "Traceback" not in cluster.lines()


@pytest.fixture(scope="module", name="late")
def _late(tmp_path_factory):
    """The cluster of a run of two workers that took the gradients of one at each step."""
    flags = paced_flags_of(tmp_path_factory.mktemp("late"), "--num_replicas_to_aggregate=1")
    with ProcessCluster(2, 1, *flags) as cluster:
        for worker in ("0", "1"):
            cluster.wait_for(worker, rf"Worker {worker}: .* step \d+,")
        for _ in range(25):  # at some of these within a step, which the other makes without it
            cluster.kill("1", signal.SIGSTOP)
            time.sleep(0.2)
            cluster.kill("1", signal.SIGCONT)
            time.sleep(0.1)
        cluster.kill("1", signal.SIGTERM)
        for worker in ("0", "1"):
            assert cluster.status(worker) == 128 + signal.SIGTERM, cluster.lines()
        cluster.finish("ps 0")
    return cluster


def test_late_gradients_are_dropped_and_counted_and_copies_stay_equal(late):
    lines = late.lines()
    assert "Warning" not in lines  # which tells of copies that differ
    assert ", times 0.1 every 500000 steps." in lines  # of 2 images, not 4
    assert re.search(r"Workers 0 and 1 train from step 0 on, 1 of them at each", lines)
    assert re.search(r"ps 0 .*; gradients that came too late: ", lines)


def test_a_signal_to_a_worker_whose_gradients_are_never_wanted_ends_all(late):
    stopped = r"\[0\] .*another worker was asked to stop: saved .*model.ckpt-\d+"
    assert re.search(stopped, late.lines())
