"""Training through parameter servers: who waits for whom, and who is refused (law 10)."""

import collections
import contextlib
import dataclasses
import re
import signal
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from inception.cluster import members
from inception.testing.cluster import Cluster
from inception.testing.runs import (
    LONGER,
    STEPS,
    assert_equal_parameters,
    commands_of,
    paced_flags_of,
    parameters,
    refusal,
    tls_flags,
)
from slim.conversion import convert
from slim.datasets import mnist
from terngrad.testing.certificates import make_certificates
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.processes import Started

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", name="alone")
def _alone(tmp_path_factory):
    """A cluster without worker 0: a worker with other rules came, then a signal to the ps."""
    folder = tmp_path_factory.mktemp("alone")
    with Cluster(2, 1, *paced_flags_of(folder), absent=["0", "1"]) as cluster:
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
    own = [member.flags for member in members.members(2, servers)]
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


def test_law_10_workers_with_other_flags_are_named(tmp_path):
    with Cluster(2, 1, *paced_flags_of(tmp_path, batch_size=4), absent=["1"]) as cluster:
        cluster.start("1", "--batch_size=8")
        for worker in ("0", "1"):
            cluster.wait_for(worker, r"batch_size is 8 on worker 1 \(.*\) and 4 on worker 0")
            assert cluster.status(worker) == 1
        cluster.status("ps 0")
        assert "Traceback" not in cluster.lines()


@pytest.fixture(scope="module", name="digits")
def _digits(tmp_path_factory):
    """Two folders of equal records, but for one damaged byte in the second."""
    images, labels = mnist.load(str(Path(mnist.__file__).parent / "mnist_sample"))["train"]
    good, damaged = (tmp_path_factory.mktemp(name) for name in ("good", "damaged"))
    path = good / "train-mnist.tfrecord"
    convert.write_records({str(path): np.arange(200)}, images, labels, mnist.INFO)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    (damaged / path.name).write_bytes(content)
    return good, damaged


def test_law_10_a_record_that_is_damaged_on_one_worker_is_named_by_all(tmp_path, digits):
    good, damaged = digits
    program, flags = paced_flags_of(tmp_path)
    flags.remove("--benchmark_mode=True")
    with Cluster(2, 1, program, [*flags, f"--data_dir={good}"], absent=["1"]) as cluster:
        cluster.start("1", f"--data_dir={damaged}")
        line = rf"{damaged}/train-mnist.tfrecord: record \d+ at byte \d+ is damaged .*"
        cluster.wait_for("1", rf"^paced_train: {line}$")
        for other in ("0", "ps 0"):
            cluster.wait_for(other, rf"ends: worker 1 \(.*\) failed: {line}")
        assert [cluster.status(label) for label in ("0", "1", "ps 0")] == [1] * 3
        assert "Traceback" not in cluster.lines()


def test_law_10_workers_with_other_kernels_are_named(tmp_path):
    with Cluster(2, 1, *paced_flags_of(tmp_path), absent=["1"]) as cluster:
        (command,) = commands_of(*paced_flags_of(tmp_path), [cluster.members["1"].flags])
        cluster.runs["1"] = Started(command, {"TERNGRAD_KERNELS": "reference"})
        for worker in ("0", "1"):
            cluster.wait_for(worker, r"kernels is reference on worker 1 \(.*\) and native on w")
            assert cluster.status(worker) == 1
        cluster.status("ps 0")
        assert "Traceback" not in cluster.lines()


@pytest.mark.exhaustive
def test_law_10_a_worker_that_does_not_join_is_named(tmp_path):
    flags = paced_flags_of(tmp_path, "--worker_timeout_secs=15")
    with Cluster(2, 1, *flags, absent=["1"]) as cluster:
        cluster.wait_for("0", r"worker 1 \(127.0.0.1:\d+\) did not join within 15 s")
        assert [cluster.status(label) for label in cluster.runs] == [1, 1]


@contextlib.contextmanager
def flooded(address, connections):
    """Keeps so many silent connections to an address open; those that are ended are renewed."""
    host, _, port = address.rpartition(":")
    stop = threading.Event()

    def flood():
        held = collections.deque()
        while not stop.wait(0.001):
            with contextlib.suppress(OSError):
                held.append(socket.create_connection((host, int(port)), 5))
            if len(held) > connections:
                held.popleft().close()
        for connection in held:
            connection.close()

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.exhaustive
def test_a_flood_of_connections_neither_ends_a_ps_nor_keeps_a_worker_out(tmp_path, undisturbed):
    tls = make_certificates(tmp_path, "ours", "all")
    flags = paced_flags_of(tmp_path / "train", *tls_flags(tls), steps=LONGER)
    with Cluster(3, 1, *flags, absent=["ps 0"]) as cluster:
        (command,) = commands_of(*flags, [cluster.members["ps 0"].flags])
        few = 'ulimit -n 256; exec "$@"'
        cluster.runs["ps 0"] = Started(["bash", "-c", few, "-", *command])
        cluster.wait_for("2", r"Worker 2: .* step 20,")
        address = re.search(r"--ps_hosts=([\d.:]+)", " ".join(command))[1]
        with flooded(address, 1000):
            cluster.wait_for("ps 0", r"Ended \d+ connections from 127.0.0.1")
            cluster.kill("2")
            cluster.start("2").wait_for(r"^Joined the training at step \d+\.")
            cluster.finish()
        floods = [line for line in cluster.runs["ps 0"].lines if "did not introduce" in line]
        assert len(floods) <= 4, cluster.lines()  # one a minute, and how many it left out
        assert "desc" not in cluster.lines()
    assert_equal_parameters(undisturbed, parameters(tmp_path / "train", LONGER))


REFUSED = "Refused 127.0.0.1: this training's authority has not signed its certificate"


@pytest.fixture(scope="module", name="encrypted")
def _encrypted(tmp_path_factory):
    """A training with certificates: its folder and cluster, and what a stranger was told.

    Worker 0 starts first, then the ps, then the stranger, then worker 1.
    """
    folder = tmp_path_factory.mktemp("encrypted")
    ours, theirs = (make_certificates(folder, ca, f"of {ca}") for ca in ("ours", "theirs"))
    waiting = "--worker_timeout_secs=200"
    program, flags = paced_flags_of(folder / "train", *tls_flags(ours), waiting, steps=STEPS)
    with Cluster(2, 1, program, flags, absent=["1", "ps 0"]) as cluster:
        cluster.wait_for("0", "Worker hosts are")
        time.sleep(3.0)  # nobody says that it has tried to reach the ps
        cluster.start("ps 0")
        cluster.wait_for("ps 0", "waits for 2 workers who have certificates")
        foreign = dataclasses.replace(theirs, ca=ours.ca)  # it would trust the ps
        own = cluster.members["1"].flags
        said = refusal(*flags, *own, *tls_flags(foreign), "--worker_timeout_secs=2")
        cluster.wait_for("ps 0", REFUSED)
        cluster.start("1")
        cluster.finish()
    return folder / "train", cluster, said


def test_workers_wait_for_a_ps_that_starts_later(encrypted):
    folder, *_ = encrypted
    assert parameters(folder, STEPS)


def test_workers_with_certificates_train_and_one_of_another_authority_does_not(encrypted):
    folder, cluster, said = encrypted
    assert parameters(folder, STEPS)
    assert "cannot be reached within 2 s" in said
    assert cluster.lines().count(REFUSED) <= 2  # once, and how many were left out
