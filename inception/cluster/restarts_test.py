"""Training through parameter servers: law 4, and law 8 where processes are killed and restarted."""

import os
import re
import signal

import pytest

from inception.testing.cluster import ProcessCluster
from inception.testing.runs import (
    LONGER,
    Run,
    assert_equal_parameters,
    paced_flags_of,
    parameters,
    train,
    worker_pids,
)
from slim.testing import write_digits

pytestmark = pytest.mark.slow


def served(folder, *more):
    """Program and flags of three workers that train as the fixture `undisturbed` does."""
    return paced_flags_of(folder, *more, steps=LONGER)


def test_the_launcher_brings_back_what_is_killed_and_no_bit_changes(tmp_path, undisturbed):
    with Run(3, *served(tmp_path), ["--ps=1", "--max_restarts=2"]) as run:
        run.wait_for(r"Worker 2: .* step 40,")
        os.kill(worker_pids(tmp_path)[2], signal.SIGKILL)
        run.wait_for(r"^2 was killed and is started again in 1 s\.")
        run.wait_for(r"^\[2\] Joined the training at step \d+\.")
        os.kill(worker_pids(tmp_path, "ps")[0], signal.SIGKILL)
        run.wait_for(r"^ps 0 was killed and is started again in 1 s\.")
        run.succeed()
    assert_equal_parameters(undisturbed, parameters(tmp_path, LONGER))


@pytest.fixture(scope="module", name="restarted")
def _restarted(tmp_path_factory):
    """The folder and the cluster of a training in which both kinds of processes are killed."""
    folder = tmp_path_factory.mktemp("restarted")
    with ProcessCluster(3, 2, *served(folder, "--save_iter=50")) as cluster:
        for step, victim, donor in ((20, "2", "0"), (30, "0", "1")):
            cluster.wait_for(victim, rf"Worker {victim}: .* step {step},")
            cluster.kill(victim)
            cluster.wait_for("ps 0", rf"^worker {victim} \(.*\) died: its stream ended")
            if victim == "2":
                wrong = cluster.start(victim, "--batch_size=8")
                assert wrong.finish() == 1
            cluster.start(victim).wait_for(r"^Joined the training at step \d+\.")
            cluster.wait_for("ps 0", rf"from step \d+ on; worker {donor} gives its state to w")
        for step, victim in ((50, "ps 1"), (70, "ps 0")):
            cluster.wait_for("1", rf"Worker 1: .* step {step},")
            cluster.kill(victim)
            cluster.start(victim)
        cluster.finish()
        yield folder, cluster, wrong


def test_laws_4_and_8_killed_workers_and_ps_that_come_back_change_no_bit(restarted, undisturbed):
    folder, cluster, _ = restarted
    # Nobody needs another's state where only the new ps 0 knows nothing, except a worker that the
    # result of the last step had not reached yet.
    views = [line for line in cluster.runs["ps 0"].lines if "train from step" in line]
    assert views
    assert all(line.count("worker") <= 2 for line in views), views
    assert_equal_parameters(undisturbed, parameters(folder, LONGER))


def test_law_8_a_step_that_is_made_anew_takes_the_same_records(tmp_path):
    (data := tmp_path / "data").mkdir()
    write_digits(data, 200)

    def trained_in(name):
        more = (f"--data_dir={data}", "--input_queue_memory_factor=1")
        program, flags = paced_flags_of(tmp_path / name, *more, steps=LONGER)
        flags.remove("--benchmark_mode=True")
        return program, flags

    with ProcessCluster(2, 1, *trained_in("disturbed")) as cluster:
        cluster.wait_for("1", r"Worker 1: .* step 20,")
        cluster.kill("1")
        cluster.start("1").wait_for(r"^Joined the training at step \d+\.")
        cluster.finish()
    _, flags = trained_in("undisturbed")
    with Run(2, "inception.mnist_distributed_train", flags) as run:
        run.succeed()
    both = (parameters(tmp_path / name, LONGER) for name in ("disturbed", "undisturbed"))
    assert_equal_parameters(*both)


def test_law_10_a_returning_worker_with_other_flags_is_named_and_rejected(restarted):
    *_, wrong = restarted
    assert re.search(r"batch_size is 8 on worker 2 \(.*\) and 2 on worker 0", wrong.output)
    assert "Traceback" not in wrong.output


def test_law_8_workers_that_are_all_killed_at_once_go_on_from_the_checkpoint(tmp_path, undisturbed):
    with ProcessCluster(
        3, 1, *served(tmp_path, "--save_iter=20", "--worker_timeout_secs=200")
    ) as cluster:
        cluster.wait_for("2", r"Worker 2: .* step 50,")
        for worker in ("0", "1", "2"):
            cluster.kill(worker)
        for worker in ("0", "1", "2"):
            cluster.wait_for("ps 0", rf"^worker {worker} \(.*\) died: its stream ended")
        for worker in ("0", "1", "2"):
            cluster.start(worker)
        cluster.wait_for("0", r"Succesfully loaded model .* at step=\d*[1-9]0\.")
        cluster.finish()
    assert_equal_parameters(undisturbed, parameters(tmp_path, LONGER))


def test_law_8_where_a_worker_is_lost_for_good_the_chief_saves_the_steps_made(
    tmp_path, undisturbed
):
    with ProcessCluster(3, 1, *served(tmp_path, "--worker_timeout_secs=15")) as cluster:
        cluster.wait_for("0", r"Worker 0: .* step 30,")
        cluster.kill("2")
        saved = r"^worker 0 \(.*\) ends: worker 2 \(.*\) died.*; saved .*/model.ckpt-(\d+)$"
        assert re.search(saved, cluster.wait_for("0", saved))
        cluster.wait_for("1", r"^worker 1 \(.*\) ends: worker 2 \(.*\) died.* within 15 s$")
        assert [cluster.status(label) for label in ("0", "1", "ps 0")] == [1] * 3
    settings = {"net": "mlp", "batch_size": 6, "nodes": 3, "steps": LONGER}
    assert_equal_parameters(undisturbed, train(1, tmp_path, **settings))


def test_elastic_training_goes_on_without_the_chief_and_takes_it_in_again(tmp_path):
    flags = paced_flags_of(tmp_path, "--worker_timeout_secs=15", "--elastic=True")
    with ProcessCluster(3, 1, *flags) as cluster:
        cluster.wait_for("2", r"Worker 2: .* step 10,")
        cluster.kill("0")
        cluster.wait_for("ps 0", r"^Workers 1 and 2 train from step \d+ on")
        joined = cluster.start("0").wait_for(r"^Joined the training at step \d+\.")
        step = 10 * (int(re.search(r"(\d+)\.$", joined)[1]) // 10 + 1)
        cluster.wait_for("0", rf"Worker 0: .* step {step},")
        cluster.kill("2", signal.SIGTERM)
        for worker in ("0", "1", "2"):
            assert cluster.status(worker) == 128 + signal.SIGTERM, cluster.lines()
        assert cluster.status("ps 0") == 0, cluster.lines()
        assert "Traceback" not in cluster.lines()
