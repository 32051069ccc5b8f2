"""Asynchronous training with real processes: who is lost, who comes back, and what is lost then."""

import contextlib
import re
import resource
import signal
import time
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.util import event_pb2

from inception.cluster import members
from inception.flags.checks import refuse_what_needs_all_workers
from inception.flags.configs import TrainConfig
from inception.results.report import read_scalars
from inception.testing.runs import (
    ENDLESS,
    Run,
    flags_of,
    paced_flags_of,
    parameters,
    processes,
    refusal,
)
from inception.training import asynchronous as asynchronous_program
from terngrad.asynchronous.chief import Chief
from terngrad.asynchronous.pulled import Pulled
from terngrad.asynchronous.run_file import RunFile
from terngrad.asynchronous.status import RunStatus
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.plans import PLAN
from terngrad.training import checkpoints
from terngrad.training.signals import StopRequest
from terngrad.training.summaries import SummaryWriter

SNAPSHOT_STEPS = 50


def asynchronous(folder, steps=ENDLESS, timeout_secs=90):
    """A program and its flags; the net is small, and a step takes little of the processor."""
    own = [
        "--cross_replica_sync=False",
        f"--ps_snapshot_steps={SNAPSHOT_STEPS}",
        f"--worker_timeout_secs={timeout_secs}",
    ]
    return paced_flags_of(folder, *own, steps=steps, batch_size=8)


@contextlib.contextmanager
def cluster(folder, workers, servers=1, **options):
    """Runs of the workers and the ps, each on its own, and what starts one again."""
    program, flags = asynchronous(folder, **options)
    processes_of = members.members(workers, servers)
    with contextlib.ExitStack() as stack:

        def start(index, *more):
            member = processes_of[index]
            (run,) = stack.enter_context(processes(program, [*flags, *more], [member]))
            return run

        yield [start(i) for i in range(len(processes_of))], start


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


def kill(run):
    run.process.send_signal(signal.SIGKILL)
    run.process.wait()


def end(runs):
    """Stops a run by its chief; returns the step of the checkpoint."""
    runs[0].process.send_signal(signal.SIGTERM)
    statuses = [run.finish() for run in runs]
    lines = "\n".join(line for run in runs for line in run.lines)
    assert statuses[0] == 128 + signal.SIGTERM, lines
    assert "Traceback" not in lines
    return int(re.search(r"SIGTERM: saved .*model.ckpt-(\d+);", lines)[1])


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
        held = {"ps/steps_per_sec", "ps/held_secs/1", "ps/staleness/max"}
        assert held <= read_scalars(str(tmp_path / f"ps_{ps}")).keys()
    assert re.search(r"Run [0-9a-f]{16} begins at step 0\.", lines)
    assert re.search(r"updates/sec\), staleness mean \d.\d\d max \d+; worker 0: \d+ updates", lines)
    assert "Finished training at step 600: checkpoints are the chief's" in lines
    assert parameters(tmp_path, 600)
    scalars = read_scalars(str(tmp_path))
    assert 0 <= scalars["staleness/mean"].values[-1] <= scalars["staleness/max"].values[-1]
    assert {"losses/total_loss", "bytes_sent_per_step", "learning_rate_plan"} <= scalars.keys()


@pytest.fixture(scope="module", name="restarted")
def _restarted(tmp_path_factory):
    """What was seen while a worker, the chief and the ps of a run were killed and came back."""
    seen = SimpleNamespace()
    with cluster(tmp_path_factory.mktemp("restarted"), 2) as (runs, start):
        for run in runs[:2]:
            wait_for_step(run, 20)
        kill(runs[1])
        seen.wrong = start(1, "--pull_bits=16")
        assert seen.wrong.finish() == 1
        wait_for_step(runs[0], max(steps_of(runs[0])) + 50)
        seen.before_worker, seen.worker = max(steps_of(runs[0])), start(1)
        runs[1] = seen.worker
        wait_for_step(runs[1], seen.before_worker + 20)

        kill(runs[0])
        seen.before_chief = max(steps_of(runs[1]))
        runs[0] = seen.chief = start(0)
        wait_for_step(runs[0], seen.before_chief + 20)

        for run in runs[:2]:
            wait_for_step(run, 3 * SNAPSHOT_STEPS)
        kill(runs[2])
        seen.before_ps = max(max(steps_of(run)) for run in runs[:2])
        runs[2] = seen.ps = start(2)
        seen.ps.wait_for("Loaded ")
        for run in runs[:2]:
            run.wait_for(r"^ps 0 \(.*\) is back")
            wait_for_step(run, seen.before_ps + 50)
        seen.last = end(runs)
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
    with cluster(tmp_path, 2, timeout_secs=timeout_secs) as (runs, _):
        for run in runs[:2]:
            wait_for_step(run, 20)
        runs[1].process.send_signal(signal.SIGSTOP)
        seen = max(steps_of(runs[0]))
        wait_for_step(runs[0], seen + 50)
        time.sleep(0.75 * timeout_secs)  # no line tells that the ps has ended its stream
        runs[1].process.send_signal(signal.SIGCONT)
        runs[1].wait_for(r"^ps 0 \(.*\) is back")
        runs[2].process.send_signal(signal.SIGSTOP)
        for run in runs[:2]:
            run.wait_for(r"^ps 0 \(.*\) no longer answers: .*; trying to reach it again for 14 s")
        seen = max(max(steps_of(run)) for run in runs[:2])
        runs[2].process.send_signal(signal.SIGCONT)
        for run in runs[:2]:
            wait_for_step(run, seen + 50)
        assert end(runs) > seen


@pytest.mark.slow
def test_a_ps_that_cannot_write_snapshots_makes_workers_wait_and_loses_no_more_than_promised(
    tmp_path,
):
    def allow_bytes(run, limit):
        resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    with cluster(tmp_path, 2) as (runs, start):
        workers = runs[:2]
        for run in workers:
            wait_for_step(run, 2 * SNAPSHOT_STEPS)
        allow_bytes(runs[2], 1024)
        line = runs[2].wait_for("Updates wait: no snapshot of step")
        assert re.search(r"File too large; tries again in 1 s\.$", line)
        for run in workers:
            told = run.wait_for("cannot apply gradients now")
            assert "File too large" in told and "tries again until it can" in told
        allow_bytes(runs[2], resource.RLIM_INFINITY)
        line = runs[2].wait_for("Wrote the snapshot of step")
        held = int(re.search(r"step (\d+)", line)[1])
        for run in workers:
            wait_for_step(run, held + SNAPSHOT_STEPS)

        allow_bytes(runs[2], 1024)
        runs[2].wait_for("tries again in 2 s")
        before = max(max(steps_of(run)) for run in workers)
        kill(runs[2])
        runs[2] = start(2)
        line = runs[2].wait_for("Loaded ")
        assert int(re.search(r"snapshot-(\d+)", line)[1]) >= before - SNAPSHOT_STEPS
        for run in workers:
            wait_for_step(run, before + SNAPSHOT_STEPS)
        assert end(runs) > before


@pytest.mark.slow
def test_workers_wait_for_a_ps_that_starts_later_and_a_stopped_run_goes_on(tmp_path):
    program, flags = asynchronous(tmp_path)
    worker, ps = members.members(1, 1)
    with processes(program, flags, [worker]) as runs:
        runs[0].wait_for("parameters in")
        time.sleep(3.0)
        with processes(program, flags, [ps]) as (server,):
            runs[0].wait_for(r": step 20,")
            server.process.send_signal(signal.SIGTERM)
            assert server.finish() == 128 + signal.SIGTERM, server.output
            server.wait_for(r"SIGTERM: ps 0 \(.*\) left 1 workers at step \d+")
        with processes(program, flags, [ps]) as (server,):
            server.wait_for("Loaded .*snapshot")
            seen = max(steps_of(runs[0]))
            runs[0].wait_for(rf": step {seen + 10},")
            step = end([*runs, server])
            assert step > seen
    assert checkpoints.step_of(checkpoints.latest_checkpoint(str(tmp_path))) == step
    with cluster(tmp_path, 1, steps=step + 50) as (runs, _):
        runs[0].wait_for(rf"Succesfully loaded model from .*ckpt-{step} at step={step}")
        runs[0].wait_for(rf"A run begins at step {step}, ")
        for run in runs:
            assert run.finish() == 0, run.output
    assert parameters(tmp_path, step + 50)


@pytest.mark.slow
@pytest.mark.parametrize(
    "asynchronous_ps", [True, pytest.param(False, marks=pytest.mark.exhaustive)]
)
def test_law_10_a_ps_of_the_other_kind_is_named(tmp_path, asynchronous_ps):
    worker, ps = members.members(1, 1)
    program, flags = flags_of(tmp_path)
    with processes(program, [*flags, f"--cross_replica_sync={not asynchronous_ps}"], [ps]) as runs:
        runs[0].wait_for("on this machine")
        said = refusal(*flags, *worker.flags, f"--cross_replica_sync={asynchronous_ps}")
        assert "was started with another --cross_replica_sync than this worker" in said


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [pytest.param(True, marks=pytest.mark.exhaustive), False])
def test_a_signal_is_heard_while_a_ps_is_away_or_hangs_and_two_ps_share_no_folder(
    tmp_path, is_killed
):
    program, flags = asynchronous(tmp_path, timeout_secs=2 * HANG_SECS)
    worker, ps = members.members(1, 1)
    other = members.members(1, 1)[1]
    with processes(program, flags, [worker, ps]) as runs:
        runs[0].wait_for(r": step 20,")
        with processes(program, flags, [other]) as (second,):
            assert second.finish() == 1
            said = second.output
            folder = re.escape(str(tmp_path / "ps_0"))
            assert re.search(rf"{folder}: another ps, process {runs[1].process.pid} on ", said)
            assert "Traceback" not in said
        if is_killed:
            kill(runs[1])
            runs[0].wait_for(f"trying to reach it again for {2 * HANG_SECS:g} s")
        else:
            runs[1].process.send_signal(signal.SIGSTOP)
        runs[0].process.send_signal(signal.SIGTERM)
        assert runs[0].finish() == 128 + signal.SIGTERM  # within HANG_SECS
        unsaved = "not saved since step 0; the same command continues from the snapshots of the ps"
        runs[0].wait_for(rf"^SIGTERM: ps 0 .* did not come back before .*; {unsaved}\.$")


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
        asynchronous_program._tell_end("there", False, last, StopRequest())
    assert text in capfd.readouterr().out
    assert status is None or ended.value.code == status


def test_a_worker_does_not_say_that_the_chief_has_saved_when_it_has_failed():
    with pytest.raises(ValueError, match="The chief has ended the run without saving it"):
        asynchronous_program._tell_end("", False, pulled(stopped=True), StopRequest())


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
        chief.begin_or_go_on(3, None)
    assert noted == [(PLAN.run, PLAN.facts)]


def test_staleness_is_shown_as_a_histogram_and_scalars(tmp_path):
    writer = SummaryWriter(str(tmp_path), PLAN.layout(), lambda codecs: [])
    writer.staleness([0, 1, 5], 9)
    writer.staleness([], 10)
    writer.flush()
    (file,) = map(str, tmp_path.iterdir())
    events = [
        event_pb2.Event.FromString(record.numpy()) for record in tf.data.TFRecordDataset(file)
    ]
    tags = [(event.step, value.tag) for event in events for value in event.summary.value]
    assert sorted(tags) == [(9, "staleness"), (9, "staleness/max"), (9, "staleness/mean")]


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({"grad_bits": 1, "use_encoding": False}, "--use_encoding=False: needs --cross_replica"),
        ({"grad_bits": 1, "floating_grad_epoch": 2}, "--floating_grad_epoch=2: needs"),
        ({"grad_bits": 1, "scaler_sharing": False}, "--scaler_sharing=False: needs"),
        ({"profile_steps": (1, 2)}, "--profile_steps=1,2: needs --cross_replica_sync=True"),
    ],
)
def test_law_10_flags_that_need_all_workers_are_named(flags, text):
    refuse_what_needs_all_workers(TrainConfig(dataset_name="mnist", net="lenet"))
    with pytest.raises(ValueError, match=text):
        refuse_what_needs_all_workers(TrainConfig(dataset_name="mnist", net="lenet", **flags))
