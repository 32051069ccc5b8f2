"""Training through parameter servers: law 4, and what happens when a process is lost."""

import contextlib
import dataclasses
import os
import re
import signal
import sys
import time

import pytest

from inception import launch
from inception.cluster_config import ClusterConfig
from inception.distributed_test import assert_equal_parameters, parameters, refusal, train
from inception.worker_runs import STEPS, Run, flags_of, worker_pids
from terngrad.exchange.parameter_server.server_test import make_certificates

ENDLESS = 100_000  # steps


@contextlib.contextmanager
def processes(program, flags, members):
    """A run of each process of a cluster; those that still run are killed at the end."""
    runs = []
    try:
        for member in members:
            runs.append(Run.__new__(Run))
            runs[-1].start([sys.executable, "-u", "-m", program, *flags, *member.flags])
        yield runs
    finally:
        for run in runs:
            run.end()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("workers", "servers"), [(2, 1), (4, 2)])
def test_law_4_parameter_servers_give_the_bits_of_one_process(tmp_path, workers, servers):
    alone = train(1, tmp_path / "alone", batch_size=8, nodes=4)
    folder = tmp_path / "served"
    program, flags = flags_of(folder, batch_size=8 // workers, nodes=4 // workers, summary_secs=0.1)
    run = Run(workers, program, flags, [f"--ps={servers}"])
    assert run.finish() == 0, "\n".join(run.lines)
    assert_equal_parameters(alone, parameters(folder))
    lines = "\n".join(run.lines)
    assert re.search(r"^\[ps 0\] PS hosts are: \['127.0.0.1:\d+'", lines, re.MULTILINE)
    assert re.search(r"^\[1\] Worker hosts are: \['127.0.0.1:\d+', ", lines, re.MULTILINE)
    replicas = f"replicas_to_aggregate={workers}; total_num_replicas={workers}"
    assert f"[0] SyncReplicas enabled: {replicas}" in lines
    for ps in range(servers):
        assert re.search(rf"\[ps {ps}\] .* ends: all workers are done", lines)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_workers_wait_for_a_ps_that_starts_later(tmp_path):
    program, flags = flags_of(tmp_path, batch_size=4)
    *workers, ps = launch.members(2, 1)
    with processes(program, flags, workers) as runs:
        for run in runs:
            run.wait_for("Worker hosts are")
        time.sleep(5.0)
        with processes(program, flags, [ps]) as (server,):
            for run in [*runs, server]:
                assert run.finish() == 0, "\n".join(run.lines)
    assert parameters(tmp_path, STEPS)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_killed_worker_is_named_and_ends_all(tmp_path, victim):
    program, flags = flags_of(tmp_path, batch_size=2, steps=ENDLESS)
    run = Run(3, program, flags, ["--ps=2"])
    run.wait_for(r"Worker 0: .* step 10,")
    os.kill(worker_pids(tmp_path)[victim], signal.SIGKILL)
    start = time.monotonic()
    lost = rf"worker {victim} \(127.0.0.1:\d+\) died"
    for other in {0, 1, 2} - {victim}:
        run.wait_for(rf"^\[{other}\] worker {other} .* ends: {lost}: its connection closed")
    run.wait_for(rf"^\[ps 0\] .*: ps 0 \(.*\) ends: {lost}: its stream ended")
    run.wait_for(r"^\[ps 1\] .*: ps 1 \(.*\) ends: worker \d")
    assert run.finish() != 0
    assert time.monotonic() - start < 30
    assert "Traceback" not in "\n".join(run.lines)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_that_hangs_is_named_and_ends_all(tmp_path, victim):
    program, flags = flags_of(tmp_path, batch_size=2, steps=ENDLESS)
    run = Run(2, program, [*flags, "--worker_timeout_secs=6"], ["--ps=1"])
    run.wait_for(r"Worker 0: .* step 10,")
    hanging = worker_pids(tmp_path)[victim]
    os.kill(hanging, signal.SIGSTOP)
    try:
        start = time.monotonic()
        run.wait_for(
            rf"worker {1 - victim} .* ends: worker {victim} \(127.0.0.1:\d+\) (hangs|died)"
        )
        run.wait_for(r"^\[ps 0\] .*: ps 0 \(.*\) ends: worker")
        assert time.monotonic() - start < 20
    finally:
        os.kill(hanging, signal.SIGKILL)
    assert run.finish() != 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_lost_ps_is_named_and_ends_all(tmp_path, victim, how):
    program, flags = flags_of(tmp_path, batch_size=2, steps=ENDLESS)
    run = Run(2, program, [*flags, "--worker_timeout_secs=8"], ["--ps=2"])
    run.wait_for(r"Worker 0: .* step 10,")
    lost = worker_pids(tmp_path, "ps")[victim]
    os.kill(lost, how)
    try:
        start = time.monotonic()
        for worker in (0, 1):
            run.wait_for(
                rf"^\[{worker}\] worker {worker} .* ends: .*ps {victim} \(.*\) (died|does not)"
            )
        assert time.monotonic() - start < 20
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(lost, signal.SIGKILL)
    assert run.finish() != 0
    assert "Traceback" not in "\n".join(run.lines)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_signal_ends_all_at_the_same_step_with_a_checkpoint(tmp_path):
    program, flags = flags_of(tmp_path, batch_size=2, steps=ENDLESS)
    run = Run(2, program, flags, ["--ps=1"])
    run.wait_for(r"Worker 1: .* step 10,")
    run.process.send_signal(signal.SIGTERM)
    assert run.finish() == 128 + signal.SIGTERM, "\n".join(run.lines)
    assert any("saved" in line and "model.ckpt-" in line for line in run.lines), run.lines
    assert any("all workers are done" in line for line in run.lines), run.lines


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_signal_ends_a_ps_without_workers_cleanly(tmp_path):
    program, flags = flags_of(tmp_path)
    with processes(program, flags, launch.members(2, 1)[2:]) as (server,):
        server.wait_for("waits for 2 workers on this machine")
        server.process.send_signal(signal.SIGTERM)
        assert server.finish() == 0, "\n".join(server.lines)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_law_10_workers_with_other_flags_are_named(tmp_path):
    *workers, ps = launch.members(2, 1)
    program, flags = flags_of(tmp_path, batch_size=4)
    workers[1].flags.append("--batch_size=8")
    with processes(program, flags, [*workers, ps]) as runs:
        for run in runs[:2]:
            run.wait_for(r"batch_size is 8 on worker 1 \(.*\) and 4 on worker 0")
            assert run.finish() == 1
        runs[2].finish()
        assert "Traceback" not in "\n".join(line for run in runs for line in run.lines)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_law_10_a_worker_that_does_not_come_is_named(tmp_path):
    worker, _, ps = launch.members(2, 1)
    program, flags = flags_of(tmp_path, batch_size=4)
    with processes(program, [*flags, "--worker_timeout_secs=15"], [worker, ps]) as runs:
        runs[0].wait_for(r"worker 1 \(127.0.0.1:\d+\) did not come within 15 s")
        assert [run.finish() for run in runs] == [1, 1]


@pytest.mark.slow
def test_law_10_a_ps_that_does_not_come_is_named(tmp_path):
    worker, _ = launch.members(1, 1)
    _, flags = flags_of(tmp_path)
    said = refusal(*flags, *worker.flags, "--worker_timeout_secs=3")
    assert re.search(r"ps 0 \(127.0.0.1:\d+\) cannot be reached within 3 s: ", said), said


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_workers_with_certificates_train_and_one_of_another_authority_does_not(tmp_path):
    ours, theirs = (make_certificates(tmp_path, ca, f"of {ca}") for ca in ("ours", "theirs"))
    tls = lambda files: [f"--tls_{k}={v}" for k, v in dataclasses.asdict(files).items()]
    worker, ps = launch.members(1, 1)
    program, flags = flags_of(tmp_path / "train", batch_size=4)
    with processes(program, [*flags, *tls(ours)], [ps]) as (server,):
        server.wait_for("waits for 1 workers who have certificates")
        said = refusal(*flags, *worker.flags, *tls(theirs), "--worker_timeout_secs=2")
        assert "cannot be reached within 2 s" in said
        with processes(program, [*flags, *tls(ours)], [worker]) as (trained,):
            assert trained.finish() == 0, "\n".join(trained.lines)
        assert server.finish() == 0, "\n".join(server.lines)
        assert "Handshake" not in "\n".join(server.lines)


@pytest.mark.slow
@pytest.mark.parametrize("job", ["ps", "worker"])
def test_without_certificates_a_ps_on_another_machine_is_refused(job):
    hosts = ["--ps_hosts=192.0.2.1:2222", "--worker_hosts=192.0.2.2:2222"]
    said = refusal(*hosts, f"--job_name={job}")
    assert "192.0.2.1:2222 is not on this machine: needs --tls_ca, --tls_cert and --tls_key" in said


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({"ps_hosts": ()}, "flag --ps_hosts=: must name HOST:PORT of each ps"),
        ({"ps_hosts": ("a",)}, "flag --ps_hosts=a: 'a' must be host:port"),
        ({"worker_hosts": ()}, "flag --worker_hosts=: must name HOST:PORT of each worker"),
        (
            {"job_name": "ps", "task_id": 1},
            "flag --task_id=1: must be 0 to 0, an index of ps_hosts",
        ),
        ({"task_id": 2}, "flag --task_id=2: must be 0 to 1, an index of worker_hosts"),
        ({"control_port": 7}, "flag --control_port=7: must not be set with --ps_hosts"),
        ({"tls_ca": "ca.pem"}, "flag --tls_cert=: must be set"),
        ({"variable_update": "collective"}, "flag --ps_hosts=p:1: is for --ps_hosts and"),
        (
            {"variable_update": "collective", "ps_hosts": (), "tls_key": "k"},
            "flag --tls_key=k: is for --ps_hosts",
        ),
        (
            {"variable_update": None, "ps_hosts": (), "job_name": "ps"},
            "flag --job_name=ps: is for --ps_hosts and --variable_update=parameter_server, not",
        ),
    ],
)
def test_law_10_flags_that_cannot_be_are_named_with_what_is_allowed(flags, text):
    good = {"variable_update": "parameter_server", "ps_hosts": ("p:1",)}
    with pytest.raises(ValueError, match=text):
        ClusterConfig(**good | {"worker_hosts": ("a:1", "b:1")} | flags)


def test_parameter_server_is_the_engine_where_there_are_ps_hosts():
    hosts = {"worker_hosts": ("a:1", "b:1")}
    assert ClusterConfig(**hosts, ps_hosts=("p:1",)).engine == "parameter_server"
    assert ClusterConfig(**hosts).engine == "collective"
