"""Asynchronous training with real processes: who is lost, who comes back, and what is lost then."""

import contextlib
import math
import re
import signal
import time
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from inception.flags.checks import refuse_what_needs_all_workers
from inception.flags.configs import TrainConfig
from inception.results.report import read_scalars
from inception.testing.cluster import ProcessCluster
from inception.testing.runs import ENDLESS, Run, flags_of, paced_flags_of, parameters
from inception.training import asynchronous as asynchronous_program
from terngrad.asynchronous.chief import Chief, RunFile
from terngrad.asynchronous.client import Pulled
from terngrad.asynchronous.messages import RunStatus
from terngrad.testing.asynchronous import PLAN
from terngrad.testing.limits import HANG_SECS
from terngrad.training import checkpoints
from terngrad.training.signals import StopRequest

SNAPSHOT_STEPS = 50


def asynchronous(folder, steps=ENDLESS, timeout_secs=90):
    """A program and its flags; the net is small, and a step takes little of the processor."""
    own = [
        "--cross_replica_sync=False",
        f"--ps_snapshot_steps={SNAPSHOT_STEPS}",
        f"--worker_timeout_secs={timeout_secs}",
    ]
    return paced_flags_of(folder, *own, steps=steps, batch_size=8)


def steps_of(run):
    return [int(s) for line in list(run.lines) for s in re.findall(r": step (\d+), entropy", line)]


def wait_for_step(run, step):
    """Waits for a line of a step that is at least `step`."""
    run.wait_for(r"Worker \d: .* step")
    deadline = time.monotonic() + HANG_SECS
    while max(steps_of(run)) < step:
        assert time.monotonic() < deadline, run.output
        assert run.process.poll() is None, run.output
        time.sleep(0.05)


def end(cluster):
    """Stops a run by its chief; returns the step of the checkpoint."""
    cluster.kill("0", signal.SIGTERM)
    statuses = {label: cluster.status(label) for label in cluster.runs}
    assert statuses["0"] == 128 + signal.SIGTERM, cluster.lines()
    assert "Traceback" not in cluster.lines()
    return int(re.search(r"SIGTERM: saved .*model.ckpt-(\d+);", cluster.lines())[1])


@pytest.mark.slow
def test_workers_train_without_waiting_until_the_run_has_its_updates(tmp_path):
    servers = 2
    program, flags = flags_of(tmp_path, net="mlp", steps=600, summary_secs=1)
    own = ["--cross_replica_sync=False", "--max_staleness=20"]
    with Run(2, program, [*flags, *own], [f"--ps={servers}"]) as run:
        lines = run.succeed()
    assert re.search(r"^\[0\] PS hosts are: \['127.0.0.1:\d+'", lines, re.MULTILINE)
    assert "SyncReplicas" not in lines
    assert "Worker 0: " in lines and "Worker 1: " in lines
    for ps in range(servers):
        assert re.search(
            rf"^\[ps {ps}\] .* ends at step 600: the run is finished", lines, re.MULTILINE
        )
        held = {"ps/steps_per_sec", "ps/blocked_secs/1", "ps/staleness/max"}
        assert held <= read_scalars(str(tmp_path / f"ps_{ps}")).keys()
    assert re.search(r"Run [0-9a-f]{16} begins at step 0\.", lines)
    assert re.search(r"updates/sec\), staleness mean \d.\d\d max \d+; worker 0: \d+ updates", lines)
    assert "Finished training at step 600: checkpoints are the chief's" in lines
    assert parameters(tmp_path, 600)
    scalars = read_scalars(str(tmp_path))
    assert 0 <= scalars["staleness/mean"].values[-1] <= scalars["staleness/max"].values[-1]
    assert {"losses/total_loss", "bytes_sent_per_step", "learning_rate_plan"} <= scalars.keys()


@pytest.mark.slow
def test_parameters_travel_in_few_bits_and_what_the_workers_make_of_them_trains(tmp_path):
    steps, program = 100, "inception.mnist_distributed_train"
    _, flags = flags_of(tmp_path, steps=steps, summary_secs=1)
    own = ["--cross_replica_sync=False", "--pull_codec=ternary", "--max_staleness=20"]
    with Run(2, program, [*flags, *own], ["--ps=2"]) as run:
        lines = run.succeed()
    for ps in range(2):
        assert re.search(
            rf"^\[ps {ps}\] .*: pull_codec=ternary: keeps a copy .* MB for all 2\.$",
            lines,
            re.MULTILINE,
        )
    found = re.search(
        r"pushes at most (\d+) bytes a step and pulls at most (\d+), at first (\d+)", lines
    )
    max_pushed, max_pulled, whole = map(int, found.groups())
    assert 15 < whole / max_pulled < 16
    counted = re.findall(
        r"Pushed (\d+) bytes a step, ([\d.]+) bits a parameter, and pulled (\d+), ([\d.]+) bits",
        lines,
    )
    assert len(counted) == 2
    for pushed, bits_pushed, pulled, bits in counted:
        assert 0.25 * max_pulled < int(pulled) < max_pulled and 0.5 < float(bits) < 2
        assert 0.25 * max_pushed < int(pushed) < max_pushed and 0.5 < float(bits_pushed) < 2
    scalars = read_scalars(str(tmp_path))
    assert 0.25 * max_pushed < scalars["bytes_sent_per_step"].values[-1] < max_pushed
    assert 0.25 * max_pulled < scalars["bytes_received_per_step"].values[-1] < max_pulled
    losses = [float(loss) for loss in re.findall(r"Worker \d: .*entropy_loss = ([\d.]+)", lines)]
    assert np.mean(losses[-4:]) < 0.5 * math.log(10)  # half of what ten equal chances cost
    assert parameters(tmp_path, steps)


@pytest.fixture(scope="module", name="restarted")
def _restarted(tmp_path_factory):
    """What was seen while a worker, the chief and the ps of a run were killed and came back."""
    seen = SimpleNamespace()
    with ProcessCluster(2, 1, *asynchronous(tmp_path_factory.mktemp("restarted"))) as cluster:
        runs = cluster.runs
        for worker in ("0", "1"):
            wait_for_step(runs[worker], 20)
        cluster.kill("1")
        seen.wrong = cluster.start("1", "--pull_bits=16")
        assert seen.wrong.finish() == 1
        wait_for_step(runs["0"], max(steps_of(runs["0"])) + 50)
        seen.before_worker, seen.worker = max(steps_of(runs["0"])), cluster.start("1")
        wait_for_step(seen.worker, seen.before_worker + 20)

        cluster.kill("0")
        seen.before_chief, seen.chief = max(steps_of(seen.worker)), cluster.start("0")
        wait_for_step(seen.chief, seen.before_chief + 20)

        both = seen.worker, seen.chief
        for run in both:
            wait_for_step(run, 3 * SNAPSHOT_STEPS)
        cluster.kill("ps 0")
        seen.before_ps, seen.ps = max(max(map(steps_of, both))), cluster.start("ps 0")
        seen.ps.wait_for("Loaded ")
        for run in both:
            run.wait_for(r"^ps 0 \(.*\) is back")
            wait_for_step(run, seen.before_ps + 50)
        seen.last = end(cluster)
    return seen


@pytest.mark.slow
def test_the_others_go_on_without_a_worker_that_was_killed_until_it_is_back(restarted):
    assert max(steps_of(restarted.worker)) >= restarted.before_worker + 20


@pytest.mark.slow
def test_law_10_workers_with_other_flags_are_named_and_the_others_go_on(restarted):
    why = r"refused this worker: .*pull_bits is 16 on worker 1 .* and 32 on worker 0"
    assert re.search(why, restarted.wrong.output)
    assert "Traceback" not in restarted.wrong.output


@pytest.mark.slow
def test_a_chief_that_was_killed_takes_up_what_the_ps_hold(restarted):
    line = restarted.chief.wait_for("The run continues with the state of the ps at step")
    assert int(re.search(r"step (\d+)", line)[1]) >= restarted.before_chief


@pytest.mark.slow
def test_a_ps_that_was_killed_is_found_again_and_has_lost_no_more_than_a_snapshot(restarted):
    held = restarted.ps.wait_for(r"Loaded .*snapshot-\d+; waits for the workers of its run")
    # A worker's last line may be of some steps before.
    assert int(re.search(r"snapshot-(\d+)", held)[1]) > restarted.before_ps - SNAPSHOT_STEPS
    for run in (restarted.worker, restarted.chief):
        run.wait_for(
            r"^ps 0 \(.*\) died or cannot be reached: .*; trying to reach it again for 90 s"
        )
    assert restarted.last > restarted.before_ps


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_worker_that_stands_still_is_not_missed_and_a_ps_that_does_is_found_again(tmp_path):
    timeout_secs = 14
    with ProcessCluster(2, 1, *asynchronous(tmp_path, timeout_secs=timeout_secs)) as cluster:
        first, second = (cluster.runs[worker] for worker in ("0", "1"))
        for run in (first, second):
            wait_for_step(run, 20)
        cluster.kill("1", signal.SIGSTOP)
        wait_for_step(first, max(steps_of(first)) + 50)
        time.sleep(0.75 * timeout_secs)  # no line tells that the ps has ended its stream
        cluster.kill("1", signal.SIGCONT)
        second.wait_for(r"^ps 0 \(.*\) is back")
        cluster.kill("ps 0", signal.SIGSTOP)
        for run in (first, second):
            run.wait_for(r"^ps 0 \(.*\) no longer answers: .*; trying to reach it again for 14 s")
        seen = max(max(map(steps_of, (first, second))))
        cluster.kill("ps 0", signal.SIGCONT)
        for run in (first, second):
            wait_for_step(run, seen + 50)
        assert end(cluster) > seen


@pytest.mark.slow
def test_workers_wait_for_a_ps_that_starts_later_and_a_stopped_run_goes_on(tmp_path):
    with ProcessCluster(1, 1, *asynchronous(tmp_path), absent=["ps 0"]) as cluster:
        cluster.wait_for("0", "parameters in")
        time.sleep(3.0)
        cluster.start("ps 0")
        cluster.wait_for("0", r": step 20,")
        cluster.kill("ps 0", signal.SIGTERM)
        assert cluster.status("ps 0") == 128 + signal.SIGTERM, cluster.lines()
        cluster.wait_for("ps 0", r"SIGTERM: ps 0 \(.*\) left 1 workers at step \d+")
        cluster.start("ps 0").wait_for("Loaded .*snapshot")
        seen = max(steps_of(cluster.runs["0"]))
        cluster.wait_for("0", rf": step {seen + 10},")
        step = end(cluster)
        assert step > seen
    assert checkpoints.step_of(checkpoints.latest_checkpoint(str(tmp_path))) == step
    with ProcessCluster(1, 1, *asynchronous(tmp_path, steps=step + 50)) as cluster:
        cluster.wait_for("0", rf"Succesfully loaded model from .*ckpt-{step} at step={step}")
        cluster.wait_for("0", rf"A run begins at step {step}, ")
        cluster.finish()
    assert parameters(tmp_path, step + 50)


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [pytest.param(True, marks=pytest.mark.exhaustive), False])
def test_a_signal_is_heard_while_a_ps_is_away_or_hangs_and_two_ps_share_no_folder(
    tmp_path, is_killed
):
    training = asynchronous(tmp_path, timeout_secs=2 * HANG_SECS)
    with ProcessCluster(1, 1, *training) as cluster:
        cluster.wait_for("0", r": step 20,")
        with ProcessCluster(1, 1, *training, absent=["0"]) as other:
            assert other.status("ps 0") == 1
            folder, ps = re.escape(str(tmp_path / "ps_0")), cluster.runs["ps 0"].process.pid
            assert re.search(rf"{folder}: another ps, process {ps} on ", other.lines())
            assert "Traceback" not in other.lines()
        cluster.kill("ps 0", signal.SIGKILL if is_killed else signal.SIGSTOP)
        if is_killed:
            cluster.wait_for("0", f"trying to reach it again for {2 * HANG_SECS:g} s")
        cluster.kill("0", signal.SIGTERM)
        assert cluster.status("0") == 128 + signal.SIGTERM  # within HANG_SECS
        unsaved = "not saved since step 0; the same command continues from the snapshots of the ps"
        cluster.wait_for("0", rf"^SIGTERM: ps 0 .* did not come back before .*; {unsaved}\.$")


def pulled(**said):
    """What a worker pulled last."""
    status = {"finished": False, "stopped": False, "saved": False} | said
    return Pulled(7, (7,), (), np.zeros(0), **status)


@pytest.mark.parametrize(
    ("last", "status", "text"),
    [
        (pulled(finished=True), None, "Finished training at step 7: there"),
        (pulled(stopped=True, saved=True), 143, "The chief was asked to stop and has saved"),
    ],
)
def test_a_worker_says_why_it_ends(last, status, text, capfd):
    with contextlib.nullcontext() if status is None else pytest.raises(SystemExit) as ended:
        asynchronous_program._log_end("there", False, last, StopRequest())
    assert text in capfd.readouterr().out
    assert status is None or ended.value.code == status


def test_a_worker_does_not_say_that_the_chief_has_saved_when_it_has_failed():
    with pytest.raises(ValueError, match="The chief has ended the run without saving it"):
        asynchronous_program._log_end("", False, pulled(stopped=True), StopRequest())


@pytest.mark.parametrize("resumes", [False, True])
def test_a_state_is_saved_once_and_again_after_an_update_of_any_ps(tmp_path, resumes):
    step, sent, later = tf.Variable(0, dtype=tf.int64), [b"1", b"2"], [b"1", b"3"]
    fetched = iter([(20, sent), (20, sent), (20, later), (20, later)])
    client = SimpleNamespace(
        enter=lambda run: [RunStatus("", 0, True, False)],
        begin=lambda plan, states, version: None,
        fetch=lambda sizes, last: next(fetched),
    )
    states = SimpleNamespace(pack=lambda: sent, unpack=lambda contents: None, shards=[])
    chief = Chief(client, PLAN, states, RunFile(""), print)
    folder = str(tmp_path)
    path = checkpoints.save(folder, {"step": step}, 20) if resumes else None
    chief.begin_or_resume(20, path)
    index = tmp_path / "model.ckpt-20.index"
    written = [index.stat().st_ino] if resumes else []
    saver = asynchronous_program._Saver(
        SimpleNamespace(
            config=TrainConfig(dataset_name="mnist", net="mlp", train_dir=folder),
            training=SimpleNamespace(state={"step": step}, step=step),
            checkpoint=path,
            settings="",
        ),
        chief,
    )
    for last in (False, True, False, True):
        assert saver.save(last=last) == str(tmp_path / "model.ckpt-20")
        written.append(index.stat().st_ino)
    first, again, *more = written[-4:]
    assert first == again and more[0] == more[1] != again
    assert len(set(written)) == 2


def test_a_run_is_noted_before_it_begins(tmp_path):
    noted = []

    class DyingChief:
        def enter(self, run):
            return [RunStatus("", 0, True, False)]

        def begin(self, plan, states, version):
            noted.append(RunFile(str(tmp_path)).read())
            raise SystemExit

    states = SimpleNamespace(pack=list)
    chief = Chief(DyingChief(), PLAN, states, RunFile(str(tmp_path)), print)
    with pytest.raises(SystemExit):
        chief.begin_or_resume(3, None)
    assert noted == [(PLAN.run, PLAN.configuration)]


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({"grad_bits": 1, "use_encoding": False}, "--use_encoding=False: needs --cross_replica"),
        ({"grad_bits": 1, "floating_grad_epoch": 2}, "--floating_grad_epoch=2: needs"),
        ({"grad_bits": 1, "scaler_sharing": False}, "--scaler_sharing=False: needs"),
        ({"local_steps": 2}, "--local_steps=2: needs --cross_replica_sync=True"),
        ({"profile_steps": (1, 2)}, "--profile_steps=1,2: needs --cross_replica_sync=True"),
    ],
)
def test_law_10_flags_that_need_all_workers_are_named(flags, text):
    refuse_what_needs_all_workers(TrainConfig(dataset_name="mnist", net="lenet"))
    with pytest.raises(ValueError, match=text):
        refuse_what_needs_all_workers(TrainConfig(dataset_name="mnist", net="lenet", **flags))
