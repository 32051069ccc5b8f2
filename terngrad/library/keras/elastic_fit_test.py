"""model.fit on workers that come and go, started as users' programs are."""

import json
import re
import signal
import sys
import time

import pytest

from terngrad.cluster.managed import launch_variables
from terngrad.cluster.membership import LOST_STATUS
from terngrad.testing import processes
from terngrad.testing.certificates import make_launched_certificates
from terngrad.testing.limits import HANG_SECS

pytestmark = pytest.mark.slow
_FIT = [
    sys.executable,
    "-m",
    "terngrad.testing.programs.elastic_fit",
    f"--timeout_secs={HANG_SECS:.0f}",
]
_STEPS = 40  # of an epoch with three workers


def cluster(*options, workers=3, servers=0):
    """Runs of the workers and the servers, and what starts one of them again."""
    return processes.cluster([*_FIT, *options], workers, servers)


def outcome(run):
    """The number of updates, the weights and the histories that a worker has at the end."""
    assert run.finish() == 0, run.output
    found = re.search(r"updates (\d+) weights ([0-9a-f]+)", run.output)
    reported = re.search(r"history (.*)", run.output)
    assert found and reported, run.output
    history = json.loads(reported[1])
    return int(found[1]), found[2], history


def kill(run):
    run.process.send_signal(signal.SIGKILL)


@pytest.mark.parametrize(
    ("servers", "sum_codec"),
    [
        (0, "exact"),
        pytest.param(1, "exact", marks=pytest.mark.exhaustive),
        pytest.param(0, "ternary", marks=pytest.mark.exhaustive),
        pytest.param(1, "ternary", marks=pytest.mark.exhaustive),
    ],
)
def test_the_others_go_on_without_a_killed_worker_and_end_with_the_same_bits(servers, sum_codec):
    """Also in a second fit; the learning rate follows the number of workers."""
    options = ("--epochs=2", "--fits=2", "--scaling=linear", f"--sum_codec={sum_codec}")
    with cluster(*options, servers=servers) as (runs, _):
        runs[0].wait_for("^epoch 0 batch 5 ")
        kill(runs[1])
        first, other = outcome(runs[0]), outcome(runs[2])
        assert first[:2] == other[:2]
        assert first[0] == 2 * 2 * _STEPS, "each step was made once"
        for fit, same in zip(first[2], other[2], strict=True):
            assert fit["epoch"] == [0, 1]
            for name in ("loss", "accuracy", "val_loss", "bytes_sent"):
                assert fit[name] == same[name]
        for run in (runs[0], runs[2]):
            assert "factor 0.6667" in run.output
            made = re.findall(r"^epoch (\d) batch (\d+) updates (\d+)$", run.output, re.M)
            positions = [(int(epoch) % 2, int(batch)) for epoch, batch, _ in made]
            assert positions == 2 * [
                (epoch, batch) for epoch in range(2) for batch in range(_STEPS)
            ]


def test_a_killed_worker_that_is_started_again_joins_and_ends_with_the_same_bits(tmp_path):
    stop = tmp_path / "stop"
    with cluster("--epochs=100000", f"--stop_file={stop}", "--pause_secs=0.1") as (runs, start):
        runs[0].wait_for("^epoch 0 batch 5 ")
        kill(runs[2])
        runs[2] = start(2)
        runs[2].wait_for(r"^Joined the training in epoch \d+, after \d+ of 40 batches\.$")
        runs[2].wait_for("^epoch")
        stop.touch()
        found = [outcome(run) for run in runs]
        assert len({each[:2] for each in found}) == 1
        epochs = [each[2][0]["epoch"] for each in found]
        assert epochs[0] == epochs[1] == list(range(len(epochs[0])))
        assert epochs[2] == epochs[0][-len(epochs[2]) :]
        assert found[0][0] == len(epochs[0]) * _STEPS
        for name in ("loss", "val_loss", "learning_rate"):  # it learns the metrics of all
            assert found[2][2][0][name] == found[0][2][0][name][-len(epochs[2]) :]


@pytest.mark.exhaustive
def test_over_encrypted_connections_a_killed_worker_joins_again(tmp_path, monkeypatch):
    make_launched_certificates(tmp_path)
    monkeypatch.setenv(launch_variables.CERTIFICATES, str(tmp_path))
    stop = tmp_path / "stop"
    options = ("--epochs=100000", f"--stop_file={stop}")
    with cluster(*options, workers=2) as (runs, start):
        runs[0].wait_for("^epoch 0 batch 5 ")
        kill(runs[1])
        runs[1] = start(1)
        runs[1].wait_for(r"^Joined the training in epoch \d+, after \d+ of \d+ batches\.$")
        runs[1].wait_for("^epoch")
        stop.touch()
        first, other = (outcome(run)[:2] for run in runs)
        assert first == other


def test_a_worker_may_die_where_the_others_wait_for_its_metrics():
    with cluster("--epochs=2", "--die_of=1", "--pause_secs=0") as (runs, _):
        first, other = outcome(runs[0]), outcome(runs[2])
        assert "dies" in runs[1].output
        assert first[:2] == other[:2]
        assert first[0] == 2 * _STEPS
        assert first[2][0]["val_loss"] == other[2][0]["val_loss"]


@pytest.mark.exhaustive
def test_law_8_workers_that_are_killed_and_come_back_change_no_bit():
    options = ("--replicas=2", "--epochs=2")
    with cluster(*options, workers=2) as (runs, _):
        undisturbed = [outcome(run)[:2] for run in runs]
    with cluster(*options, workers=2) as (runs, start):
        for rank in (1, 0):  # the chief, too
            runs[1 - rank].wait_for(f"^epoch {1 - rank} batch 5 ")
            kill(runs[rank])
            runs[rank] = start(rank)
        assert [outcome(run)[:2] for run in runs] == undisturbed


@pytest.mark.exhaustive
def test_a_worker_that_was_frozen_skips_what_the_others_did_and_joins_them(tmp_path):
    stop = tmp_path / "stop"
    options = ("--epochs=100000", f"--stop_file={stop}", "--timeout_secs=30")
    with cluster(*options) as (runs, _):
        runs[0].wait_for("^epoch 0 batch 5 ")
        runs[1].process.send_signal(signal.SIGSTOP)
        runs[0].wait_for("^epoch 1 batch 20 ")
        runs[1].process.send_signal(signal.SIGCONT)
        runs[0].wait_for("^Workers 0, 1 and 2 train from step [1-9]")
        stop.touch()
        found = [outcome(run)[:2] for run in runs]
        assert len(set(found)) == 1


@pytest.mark.exhaustive
def test_a_worker_that_comes_in_a_later_call_of_fit_ends_and_the_others_go_on():
    with cluster("--epochs=1", "--fits=100000", workers=2) as (runs, start):
        runs[0].wait_for("^epoch 0 batch 5 ")
        kill(runs[1])
        runs[0].wait_for("^Worker 0 trains from step")
        updates = 2 * (3 * _STEPS // 2)
        runs[0].wait_for(f"^epoch 0 batch 5 updates {updates + 6}$")  # of the third call
        runs[1] = start(1)
        assert runs[1].finish() == LOST_STATUS, runs[1].output
        assert "ends: the others are in a later call of fit" in runs[1].output
        made = len(runs[0].lines)
        while len(runs[0].lines) < made + 10:
            assert runs[0].process.poll() is None, runs[0].output
            time.sleep(0.05)


@pytest.mark.exhaustive
@pytest.mark.parametrize("servers", [0, 1])
def test_the_others_make_steps_without_a_slow_worker_which_ends_with_the_same_bits(
    servers, tmp_path
):
    """Of three workers the first two to be ready make a step."""
    go_on, is_back = tmp_path / "go on", tmp_path / "is back"
    options = ("--replicas=2", "--epochs=2", "--slow_of=2", f"--slow_file={go_on}")
    options = (*options, f"--wait_file={is_back}")
    with cluster(*options, servers=servers) as (runs, _):
        runs[2].wait_for("^epoch 0 batch 0 ")
        for run in runs[:2]:
            run.wait_for(f"^epoch 0 batch {_STEPS - 1} ")  # where the epoch ends they meet
        assert "batch 1 " not in runs[2].output
        go_on.touch()
        runs[2].wait_for("^epoch 1 begins$")  # the others would not wait for it to come so far
        is_back.touch()
        found = [outcome(run) for run in runs[:3]]
        assert len({each[:2] for each in found}) == 1
        assert found[0][0] == 2 * _STEPS, "each step was made once"
        assert len({tuple(each[2][0]["val_loss"]) for each in found}) == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize(("servers", "options"), [(0, ["--elastic"]), (1, [])])
def test_the_others_go_on_at_once_without_a_killed_backup_worker(servers, options):
    with cluster("--replicas=2", "--epochs=2", *options, servers=servers) as (runs, _):
        runs[2].wait_for("^epoch 0 batch 2 ")
        kill(runs[2])
        first, other = (outcome(run) for run in runs[:2])
        assert first[:2] == other[:2]
        assert first[0] == 2 * _STEPS


@pytest.mark.exhaustive
def test_a_slow_worker_stops_all_after_the_same_step(tmp_path):
    go_on = tmp_path / "go on"
    options = ("--replicas=1", "--epochs=100000", "--slow_of=2", f"--slow_file={go_on}")
    with cluster(*options) as (runs, _):
        runs[2].wait_for("^epoch 0 batch 0 ")
        runs[0].wait_for("^epoch 0 batch 20 ")
        runs[2].process.send_signal(signal.SIGINT)
        go_on.touch()
        for run in runs:
            assert run.finish() != 0
            assert "a worker was interrupted; all stopped after the same step" in run.output
        updates = [re.findall(r" updates (\d+)$", run.output, re.M)[-1] for run in runs]
        assert len(set(updates)) == 1


def test_an_unknown_number_of_batches_is_refused():
    why = "fit: the number of batches is unknown, .*: give steps_per_epoch$"
    with cluster("--unknown", workers=2) as (runs, _):
        for run in runs:
            assert run.finish() != 0
        assert any(re.search(why, run.output, re.M) for run in runs), runs[0].output
