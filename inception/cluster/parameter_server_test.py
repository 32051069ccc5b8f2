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
from inception.flags.cluster import ClusterConfig
from inception.testing import (
    ENDLESS,
    STEPS,
    Run,
    assert_equal_parameters,
    flags_of,
    parameters,
    refusal,
    train,
    worker_pids,
)
from terngrad.testing.certificates import make_certificates
from terngrad.testing.processes import Started
from terngrad.training import checkpoints

LONGER = 150  # than a process takes to come back, and some


class Cluster(contextlib.AbstractContextManager):
    """The processes of a cluster by what their lines begin with: "0", "1", "ps 0".

    Those that still run are killed at the end.
    """

    def __init__(self, workers, servers, program, flags, absent=()):
        self.members = {m.label: m for m in launch.members(workers, servers)}
        self.runs = {}
        self._command = [sys.executable, "-u", "-m", program, *flags]
        for label in self.members:
            if label not in absent:
                self.start(label)

    def start(self, label, *flags):
        run = Started([*self._command, *self.members[label].flags, *flags])
        self.runs[label] = run
        return run

    def kill(self, label, how=signal.SIGKILL):
        self.runs[label].process.send_signal(how)
        if how == signal.SIGKILL:
            self.runs[label].process.wait()
            self.runs[label].reader.join(10)

    def freeze_outside_the_steps(self, label, other):
        """Stops a worker at a moment at which no step of another needs it any more.

        Within a step for which it was chosen, the other would wait until it counts as dead.
        Returns the last step of which the other told.
        """
        for _ in range(20):
            self.kill(label, signal.SIGSTOP)
            lines = self.runs[other].lines
            enough = len(lines) + 3  # some may have been on their way
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline:
                if len(lines) >= enough:
                    return int(re.search(r" step (\d+),", lines[-1])[1])
                time.sleep(0.05)
            self.kill(label, signal.SIGCONT)
            time.sleep(0.1)
        pytest.fail(f"{other} does not go on without {label}\n{self.lines()}")

    def wait_for(self, label, pattern):
        """A line of a process; a time-out shows those of all."""
        try:
            return self.runs[label].wait_for(pattern)
        except pytest.fail.Exception:
            pytest.fail(f"no line {pattern!r} of {label}\n{self.lines()}")

    def status(self, label):
        """The exit status of a process, waited for; a time-out shows the lines of all."""
        try:
            return self.runs[label].finish()
        except pytest.fail.Exception:
            pytest.fail(f"{label} is still running\n{self.lines()}")

    def finish(self, *labels):
        """Waits for some processes, or all, and checks that all is well with them."""
        for label in labels or self.runs:
            assert self.status(label) == 0, self.lines()
        assert "Traceback" not in self.lines()

    def lines(self):
        return "\n".join(f"[{label}] {line}" for label, r in self.runs.items() for line in r.lines)

    def __exit__(self, *exception):
        for run in self.runs.values():
            run.end()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_law_4_parameter_servers_give_the_bits_of_one_process(tmp_path):
    workers, servers = 4, 2
    alone = train(1, tmp_path / "alone", batch_size=8, nodes=4)
    folder = tmp_path / "served"
    program, flags = flags_of(folder, batch_size=8 // workers, nodes=4 // workers, summary_secs=0.1)
    run = Run(workers, program, flags, [f"--ps={servers}"])
    assert run.finish() == 0, run.output
    assert_equal_parameters(alone, parameters(folder))
    lines = run.output
    assert re.search(r"^\[ps 0\] PS hosts are: \['127.0.0.1:\d+'", lines, re.MULTILINE)
    assert re.search(r"^\[1\] Worker hosts are: \['127.0.0.1:\d+', ", lines, re.MULTILINE)
    replicas = f"replicas_to_aggregate={workers}; total_num_replicas={workers}"
    assert f"[0] SyncReplicas enabled: {replicas}" in lines
    for ps in range(servers):
        assert re.search(rf"\[ps {ps}\] .* ends: all workers are done", lines)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_launcher_brings_back_what_is_killed_and_no_bit_changes(tmp_path, undisturbed):
    with Run(3, *served(tmp_path), ["--ps=1", "--max_restarts=2"]) as run:
        run.wait_for(r"Worker 2: .* step 40,")
        os.kill(worker_pids(tmp_path)[2], signal.SIGKILL)
        run.wait_for(r"^2 was killed, and is started again\.")
        run.wait_for(r"^\[2\] Joined the training at step \d+\.")
        os.kill(worker_pids(tmp_path, "ps")[0], signal.SIGKILL)
        run.wait_for(r"^ps 0 was killed, and is started again\.")
        assert run.finish() == 0, run.output
    assert_equal_parameters(undisturbed, parameters(tmp_path, LONGER))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_launcher_lets_an_elastic_training_go_on(tmp_path):
    program, flags = flags_of(tmp_path, batch_size=2, steps=LONGER)
    flags += ["--worker_timeout_secs=4", "--elastic=True"]
    with Run(3, program, flags, ["--ps=1"]) as run:
        run.wait_for(r"Worker 2: .* step 40,")
        os.kill(worker_pids(tmp_path)[1], signal.SIGKILL)
        assert run.finish() == 0, run.output
    assert parameters(tmp_path, LONGER)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_workers_wait_for_a_ps_that_starts_later(tmp_path):
    program, flags = flags_of(tmp_path, batch_size=4)
    with Cluster(2, 1, program, flags, absent=["ps 0"]) as cluster:
        for worker in ("0", "1"):
            cluster.wait_for(worker, "Worker hosts are")
        time.sleep(3.0)
        cluster.start("ps 0")
        cluster.finish()
    assert parameters(tmp_path, STEPS)


@pytest.fixture(scope="module", name="undisturbed")
def _undisturbed(tmp_path_factory):
    """Parameters of a training of as many nodes in one process."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return train(1, folder, batch_size=6, nodes=3, steps=LONGER)


def served(folder, *more):
    """Program and flags of such a training by three workers."""
    program, flags = flags_of(folder, batch_size=2, steps=LONGER)
    return program, [*flags, *more]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_law_8_killed_workers_and_ps_that_come_back_change_no_bit(tmp_path, undisturbed):
    with Cluster(3, 2, *served(tmp_path, "--save_iter=50")) as cluster:
        for step, victim, donor in ((20, "2", "0"), (30, "0", "1")):
            cluster.wait_for(victim, rf"Worker {victim}: .* step {step},")
            cluster.kill(victim)
            cluster.wait_for("ps 0", rf"^worker {victim} \(.*\) died: its stream ended")
            cluster.start(victim).wait_for(r"^Joined the training at step \d+\.")
            cluster.wait_for("ps 0", rf"from step \d+ on; worker {donor} gives its state to w")
        for step, victim in ((50, "ps 1"), (70, "ps 0")):
            cluster.wait_for("1", rf"Worker 1: .* step {step},")
            cluster.kill(victim)
            cluster.start(victim)
        cluster.finish()
        # Nobody needs another's state where only the new ps 0 knows nothing.
        views = [line for line in cluster.runs["ps 0"].lines if "train from step" in line]
        assert views
        assert not any("gives" in line for line in views), views
    assert_equal_parameters(undisturbed, parameters(tmp_path, LONGER))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_law_8_workers_that_are_all_killed_at_once_go_on_from_the_checkpoint(tmp_path, undisturbed):
    with Cluster(3, 1, *served(tmp_path, "--save_iter=20", "--worker_timeout_secs=200")) as cluster:
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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_law_8_where_a_worker_is_lost_for_good_the_chief_saves_the_steps_made(
    tmp_path, undisturbed
):
    served_by = served(tmp_path, "--worker_timeout_secs=6")
    with Cluster(3, 1, *served_by) as cluster:
        cluster.wait_for("0", r"Worker 0: .* step 30,")
        cluster.kill("2")
        saved = r"^worker 0 \(.*\) ends: worker 2 \(.*\) died.*; saved .*/model.ckpt-(\d+)$"
        step = re.search(saved, cluster.wait_for("0", saved))[1]
        cluster.wait_for("1", r"^worker 1 \(.*\) ends: worker 2 \(.*\) died.* within 6 s$")
        assert [cluster.status(label) for label in ("0", "1", "ps 0")] == [1] * 3
    with Cluster(3, 1, *served_by) as cluster:
        cluster.wait_for("0", rf"Succesfully loaded model .* at step={step}\.")
        cluster.finish()
    assert_equal_parameters(undisturbed, parameters(tmp_path, LONGER))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_worker_that_does_not_come_back_is_named_and_ends_all(tmp_path):
    victim, other = "0", "1"
    program, flags = flags_of(tmp_path, batch_size=2, steps=ENDLESS)
    with Cluster(2, 2, program, [*flags, "--worker_timeout_secs=6"]) as cluster:
        cluster.wait_for("0", r"Worker 0: .* step 10,")
        cluster.kill(victim)
        lost = rf"worker {victim} \(.*\) died: its stream ended, and did not come back within 6 s"
        saved = r"; saved .*/model.ckpt-\d+$"  # in the chief's place
        cluster.wait_for(other, rf"^worker {other} \(.*\) ends: {lost}{saved}")
        for ps in ("ps 0", "ps 1"):
            cluster.wait_for(ps, rf"{ps} \(.*\) ends: {lost}")
        assert [cluster.status(label) for label in (other, "ps 0", "ps 1")] == [1] * 3
        assert "Traceback" not in cluster.lines()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_elastic_training_goes_on_without_a_worker_and_takes_it_in_again(tmp_path):
    program, flags = flags_of(tmp_path, batch_size=2, steps=ENDLESS)
    flags += ["--worker_timeout_secs=5", "--elastic=True"]
    with Cluster(3, 1, program, flags) as cluster:
        cluster.wait_for("2", r"Worker 2: .* step 10,")
        for victim, others in (("1", "0 and 2"), ("0", "1 and 2")):
            cluster.kill(victim)
            cluster.wait_for("ps 0", rf"^Workers {others} train from step \d+ on")
            joined = cluster.start(victim).wait_for(r"^Joined the training at step \d+\.")
            step = 10 * (int(re.search(r"(\d+)\.$", joined)[1]) // 10 + 1)
            cluster.wait_for(victim, rf"Worker {victim}: .* step {step},")
        cluster.kill("2", signal.SIGTERM)
        for worker in ("0", "1", "2"):
            assert cluster.status(worker) == 128 + signal.SIGTERM, cluster.lines()
        assert cluster.status("ps 0") == 0, cluster.lines()
        assert "Traceback" not in cluster.lines()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("victim", "how"), [("0", signal.SIGKILL), ("1", signal.SIGSTOP)])
def test_with_backup_workers_the_run_goes_on_when_one_is_lost(tmp_path, victim, how):
    program, flags = flags_of(tmp_path, batch_size=2, steps=LONGER)
    flags += ["--worker_timeout_secs=8", "--num_replicas_to_aggregate=2"]
    with Cluster(3, 1, program, flags) as cluster:
        cluster.wait_for("2", r"Worker 2: .* step \d+,")
        cluster.kill(victim, how)
        cluster.wait_for("ps 0", rf"^worker {victim} \(.*\) died: its stream ended")
        others = [worker for worker in ("0", "1", "2") if worker != victim]
        cluster.wait_for("ps 0", r"^Workers \d and \d train from step \d+ on")
        for worker in others:
            cluster.wait_for(worker, f"Finished training at step {LONGER}")
        cluster.finish(*others, "ps 0")
    assert parameters(tmp_path, LONGER)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_gradients_that_come_too_late_are_dropped_and_counted_and_copies_stay_the_same(tmp_path):
    program, flags = flags_of(tmp_path, batch_size=2, steps=ENDLESS)
    flags.append("--num_replicas_to_aggregate=1")
    with Cluster(2, 1, program, flags) as cluster:
        cluster.wait_for("1", r"Worker 1: .* step \d+,")
        for _ in range(25):  # at some of these within a step, which the other makes without it
            cluster.kill("1", signal.SIGSTOP)
            time.sleep(0.2)
            cluster.kill("1", signal.SIGCONT)
            time.sleep(0.1)
        cluster.kill("0", signal.SIGTERM)
        for worker in ("0", "1"):
            assert cluster.status(worker) == 128 + signal.SIGTERM, cluster.lines()
        cluster.finish("ps 0")
        lines = cluster.lines()
        assert "Warning" not in lines  # which tells of copies that differ
        assert ", times 0.1 every 500000 steps." in lines  # of 2 images, not 4
        assert re.search(r"Workers 0 and 1 train from step 0 on, 1 of them at each", lines)
        assert re.search(r"ps 0 .*; gradients that came too late: ", lines)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_worker_that_hangs_is_named_and_ends_all(tmp_path):
    program, flags = flags_of(tmp_path, batch_size=2, steps=ENDLESS)
    with Cluster(2, 1, program, [*flags, "--worker_timeout_secs=6"]) as cluster:
        cluster.wait_for("0", r"Worker 0: .* step 10,")
        cluster.kill("0", signal.SIGSTOP)
        cluster.wait_for("1", r"^worker 1 .* ends: worker 0 \(.*\)(:| died)")
        cluster.wait_for("ps 0", r"ps 0 \(.*\) ends: worker 0")
        assert cluster.status("1") == cluster.status("ps 0") == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("victim", "how"), [("ps 0", signal.SIGKILL), ("ps 1", signal.SIGSTOP)])
def test_a_ps_that_does_not_come_back_is_named_and_ends_all(tmp_path, victim, how):
    program, flags = flags_of(tmp_path, batch_size=2, steps=ENDLESS)
    with Cluster(2, 2, program, [*flags, "--worker_timeout_secs=8"]) as cluster:
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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_signal_ends_all_at_the_same_step_with_a_checkpoint(tmp_path):
    program, flags = flags_of(tmp_path, batch_size=2, steps=ENDLESS)
    with Run(2, program, flags, ["--ps=1"]) as run:
        run.wait_for(r"Worker 1: .* step 10,")
        run.process.send_signal(signal.SIGTERM)
        assert run.finish() == 128 + signal.SIGTERM, run.output
    assert any("saved" in line and "model.ckpt-" in line for line in run.lines), run.lines
    assert any("all workers are done" in line for line in run.lines), run.lines


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_signal_to_a_worker_whose_gradients_are_never_wanted_ends_all(tmp_path):
    program, flags = flags_of(tmp_path, batch_size=2, steps=ENDLESS)
    flags += ["--num_replicas_to_aggregate=1"]
    with Cluster(2, 1, program, flags) as cluster:
        for worker in ("0", "1"):
            cluster.wait_for(worker, rf"Worker {worker}: .* step \d+,")
        cluster.kill("1", signal.SIGTERM)
        for worker in ("0", "1"):
            assert cluster.status(worker) == 128 + signal.SIGTERM, cluster.lines()
        cluster.finish("ps 0")
        cluster.wait_for("0", r"another worker was asked to stop: saved .*model.ckpt-\d+")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_who_is_given_the_state_of_a_run_that_was_stopped_ends_too(tmp_path):
    program, flags = flags_of(tmp_path, batch_size=2, steps=ENDLESS)
    flags += ["--num_replicas_to_aggregate=1", "--worker_timeout_secs=240"]
    with Cluster(2, 1, program, flags) as cluster:
        cluster.wait_for("1", r"Worker 1: .* step \d+,")
        step = cluster.freeze_outside_the_steps("1", "0")
        cluster.wait_for("0", rf"Worker 0: .* step {step + 100},")  # a ps keeps fewer results
        cluster.kill("0", signal.SIGTERM)
        deadline = time.monotonic() + 60
        while not checkpoints.latest_checkpoint(str(tmp_path)) and time.monotonic() < deadline:
            time.sleep(0.05)
        cluster.kill("1", signal.SIGCONT)
        for worker in ("0", "1"):
            assert cluster.status(worker) == 128 + signal.SIGTERM, cluster.lines()
        cluster.finish("ps 0")
        cluster.wait_for("ps 0", r"from step [1-9]\d* on.*; worker 0 gives its state to worker 1")
        cluster.wait_for("1", r"another worker was asked to stop: the chief saved")
        assert "Warning" not in cluster.lines()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_signal_ends_a_ps_without_workers_cleanly(tmp_path):
    with Cluster(2, 1, *flags_of(tmp_path), absent=["0", "1"]) as cluster:
        cluster.wait_for("ps 0", "waits for 2 workers on this machine")
        cluster.kill("ps 0", signal.SIGTERM)
        cluster.wait_for("ps 0", r"ps 0 \(.*\) ends: SIGTERM\.")
        assert cluster.status("ps 0") == 0, cluster.lines()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_law_10_workers_with_other_flags_are_named(tmp_path):
    program, flags = flags_of(tmp_path, batch_size=4)
    with Cluster(2, 1, program, flags, absent=["1"]) as cluster:
        cluster.start("1", "--batch_size=8")
        for worker in ("0", "1"):
            cluster.wait_for(worker, r"batch_size is 8 on worker 1 \(.*\) and 4 on worker 0")
            assert cluster.status(worker) == 1
        cluster.status("ps 0")
        assert "Traceback" not in cluster.lines()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_law_10_a_ps_with_other_rules_is_named(tmp_path):
    with Cluster(2, 1, *flags_of(tmp_path, batch_size=4), absent=["0", "1"]) as cluster:
        run = cluster.start("1", "--num_replicas_to_aggregate=1")
        run.wait_for("its flags are num_replicas_to_aggregate=1, .*those of this ps num_replicas_t")
        assert run.finish() == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_law_10_a_worker_that_comes_back_with_other_flags_is_named_and_disturbs_nobody(tmp_path):
    program, flags = flags_of(tmp_path, batch_size=2, steps=LONGER)
    with Cluster(2, 1, program, flags) as cluster:
        cluster.wait_for("1", r"Worker 1: .* step 20,")
        cluster.kill("1")
        wrong = cluster.start("1", "--batch_size=8")
        wrong.wait_for(r"batch_size is 8 on worker 1 \(.*\) and 2 on worker 0")
        assert wrong.finish() == 1
        cluster.start("1")
        cluster.finish()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_law_10_a_worker_that_does_not_come_is_named(tmp_path):
    program, flags = flags_of(tmp_path, batch_size=4)
    flags.append("--worker_timeout_secs=15")
    with Cluster(2, 1, program, flags, absent=["1"]) as cluster:
        cluster.wait_for("0", r"worker 1 \(127.0.0.1:\d+\) did not come within 15 s")
        assert [run.finish() for run in cluster.runs.values()] == [1, 1]


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
    program, flags = flags_of(tmp_path / "train", batch_size=4)
    with Cluster(1, 1, program, [*flags, *tls(ours)], absent=["0"]) as cluster:
        cluster.wait_for("ps 0", "waits for 1 workers who have certificates")
        worker = cluster.members["0"]
        foreign = dataclasses.replace(theirs, ca=ours.ca)  # it would trust the ps
        said = refusal(*flags, *worker.flags, *tls(foreign), "--worker_timeout_secs=2")
        assert "cannot be reached within 2 s" in said
        refused = "Refused somebody whose TLS handshake failed: certificate verify failed"
        cluster.wait_for("ps 0", refused)
        cluster.start("0")
        cluster.finish()
        assert cluster.lines().count(refused) == 1
        assert "Handshake failed" not in cluster.lines()


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
        (
            {"num_replicas_to_aggregate": 3},
            "flag --num_replicas_to_aggregate=3: must be 1 to 2, the number of worker_hosts",
        ),
        (
            {"cross_replica_sync": False, "elastic": True},
            "flag --elastic=True: is for --cross_replica_sync=True",
        ),
        (
            {"variable_update": "collective", "ps_hosts": (), "elastic": True},
            "flag --elastic=True: is for --ps_hosts",
        ),
        ({"variable_update": "collective"}, "flag --ps_hosts=p:1: is for --ps_hosts and"),
        (
            {"variable_update": "collective", "ps_hosts": (), "tls_key": "k"},
            "flag --tls_key=k: is for --ps_hosts",
        ),
        (
            {"variable_update": "mpi", "ps_hosts": (), "worker_hosts": (), "elastic": True},
            "--elastic=True: is for --ps_hosts and --variable_update=parameter_server, not mpi",
        ),
        (
            {"variable_update": None, "ps_hosts": (), "allow_insecure_network": True},
            "flag --allow_insecure_network=True: is for --ps_hosts",
        ),
        (
            {"variable_update": None, "ps_hosts": (), "num_replicas_to_aggregate": 1},
            "flag --num_replicas_to_aggregate=1: is for --ps_hosts",
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
