"""Trials as tasks of Spark, with small programs in place of training and evaluation."""

import contextlib
import os
import shutil
import signal
import socket
import textwrap
import threading
import time
from pathlib import Path

import pytest

from inception.sweeping import messages, places
from inception.sweeping.messages import Outcome, TrialSpec
from terngrad.testing.limits import HANG_SECS

pytestmark = pytest.mark.slow
REPO = Path(__file__).parents[2]
EVALUATION = ["stand_in_evaluate"]
TRAIN = """
    import os, pathlib, signal, sys, time
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    def save(*_):
        (folder / "saved").touch()
        sys.exit(143)
    signal.signal(signal.SIGTERM, save)
    (folder / "ready").write_text(str(os.getpid()))
    time.sleep(float(sys.argv[2]))
"""
EVALUATE = """
    print("Succesfully loaded model from /x/model.ckpt-10 at step=10.")
    print("2026: precision @ 1 = 0.75 recall @ 5 = 0.9000 [10 examples]", flush=True)
"""


@pytest.fixture(scope="module")
def session():
    pytest.importorskip("pyspark", reason="pyspark is not installed: pip install '.[spark]'")
    if not shutil.which("java"):
        pytest.skip("there is no Java (apt-get install openjdk-17-jre-headless)")
    opened = places.open_session("local-cluster[2,1,1024]")
    yield opened
    opened.stop()


@pytest.fixture
def workspace(tmp_path):
    """A folder in which the executors find stand-ins beside the real module of trials."""
    (tmp_path / "inception").symlink_to(REPO / "inception")
    for module, text in (("train", TRAIN), ("evaluate", EVALUATE)):
        (tmp_path / f"stand_in_{module}.py").write_text(textwrap.dedent(text))
    return tmp_path


def run(session, workspace, secs, act=lambda connection, folder: None):
    """Runs a trial whose training takes so many seconds; acts once it trains."""
    folder = workspace / f"trial_{secs}"
    spec = TrialSpec(str(folder), ["stand_in_train", str(folder), str(secs)], EVALUATION, False)
    with places.SparkPlace(session, 3, str(workspace)).start(spec) as connection:
        acting = threading.Thread(target=lambda: act(connection, wait_for(folder)))
        acting.start()
        *evaluations, end = connection.events()
        acting.join()
    return evaluations, end


def wait_for(folder):
    deadline = time.monotonic() + HANG_SECS
    while not (folder / "ready").exists() or not (folder / "ready").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return folder


def ancestor(folder, word):
    """The process above a training whose command line holds a word."""
    pid = int((folder / "ready").read_text())
    while word not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


@pytest.mark.exhaustive
def test_a_trial_outlives_the_executor_that_started_it(session, workspace):
    def kill(connection, folder):
        os.kill(ancestor(folder, b"CoarseGrainedExecutorBackend"), signal.SIGKILL)

    assert run(session, workspace, 2, kill)[1].outcome is Outcome.DONE
    assert run(session, workspace, 0)[1].outcome is Outcome.DONE


class _Idle:
    """The job of a task that a test plays."""

    error = "ended"
    is_alive = staticmethod(lambda: True)
    join = staticmethod(lambda: None)


def test_connections_without_the_secret_are_not_the_trial_and_do_not_keep_it_out(tmp_path):
    server = socket.create_server(("127.0.0.1", 0))
    call = lambda: socket.create_connection(server.getsockname(), HANG_SECS)
    spec = TrialSpec(str(tmp_path), [], [], False)
    connection = places._SocketConnection(server, "secret", _Idle(), spec, "a task")
    with call(), call() as wrong, call() as task, call() as second:
        wrong.sendall(b"Secret")
        assert wrong.recv(1) == b""
        task.sendall(b"secret")
        events = []
        reading = threading.Thread(target=lambda: events.extend(connection.events()))
        reading.start()
        assert task.makefile().readline() == messages.write(spec)
        with contextlib.suppress(OSError):  # the port is closed
            second.sendall(b"secret")
            assert second.recv(1) == b""
        task.shutdown(socket.SHUT_RDWR)
        reading.join(HANG_SECS)
    assert [(each.outcome, each.reason) for each in events] == [(Outcome.LOST, "a task: ended")]
    connection.stop()


def test_law_10_a_master_that_is_none_is_reported():
    with pytest.raises(ValueError, match=r"flag --spark=foo: must be a Spark master: spark://HOST"):
        places.open_session("foo")
