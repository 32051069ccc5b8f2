"""What ends a cluster before its time: a stop, Ctrl-C, jobs that the user cancels."""

import shutil
import signal
import sys
import threading
import traceback
from unittest import mock

import pytest

from terngrad.spark import cluster
from terngrad.spark.driver import Placement, ProcessId
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.processes import wait_until

pyspark = pytest.importorskip("pyspark", reason="pyspark is not installed: pip install '.[spark]'")
HOST = "127.0.0.1"
CANCELLED = RuntimeError(
    "[SPARK_JOB_CANCELLED] Job 5 cancelled as part of cancellation of all jobs"
)


class _Jobs:
    """Jobs that wait for cores, or fail at once; `wait` is called before they are seen to fail."""

    def __init__(self, failures, wait, on_end):
        self.failures, self.wait, self.is_cancelled = failures, wait, False
        if failures:
            on_end()

    def cancel(self):
        self.is_cancelled = True


@pytest.fixture
def make(monkeypatch):
    """Returns a function that makes a cluster, with the jobs of each attempt in `attempts`."""
    if not shutil.which("openssl"):
        pytest.skip("there is no openssl")

    def make_it(failures=(), wait=lambda: None):
        def add(context, rdds, on_end):
            made.attempts.append(_Jobs(failures, wait, on_end))
            return made.attempts[-1]

        monkeypatch.setattr(pyspark, "InheritableThread", threading.Thread)
        monkeypatch.setattr(cluster, "Jobs", add)
        monkeypatch.setattr(cluster.Cluster, "_find_hosts", lambda *_: [HOST])
        session = mock.MagicMock()
        session.sparkContext.getConf().get.return_value = HOST
        mode = cluster.InputMode.TENSORFLOW
        made = cluster.Cluster(session, print, None, 2, 0, mode, HANG_SECS, print)
        made.attempts = []
        return made

    return make_it


def test_a_stop_ends_the_wait_for_cores(make):
    made = make()
    made.start()
    made.stop()
    made.shutdown()
    assert [jobs.is_cancelled for jobs in made.attempts] == [True]


def test_jobs_that_the_user_cancels_do_not_start_again(make):
    made = make([CANCELLED])
    made.start()
    with pytest.raises(cluster.ClusterError, match="SPARK_JOB_CANCELLED"):
        made.shutdown()
    assert len(made.attempts) == 1


@pytest.mark.parametrize(("is_stopped", "attempts"), [(False, 4), (True, 1)])
def test_others_that_fail_start_again_but_not_after_a_stop(make, is_stopped, attempts):
    made = make([OSError("lost")], lambda: is_stopped and made.stop())
    made.start()
    with pytest.raises(cluster.ClusterError, match="lost"):
        made.shutdown()
    assert len(made.attempts) == attempts


def _wait_until_the_main_thread_waits_in_shutdown():
    main = threading.main_thread().ident

    def waits():
        names = [f.f_code.co_name for f, _ in traceback.walk_stack(sys._current_frames()[main])]
        return names[0] in ("wait", "_wait_for_tstate_lock") and "shutdown" in names

    wait_until(waits, "the main thread to wait")


def test_an_interrupt_lets_all_save_before_pyspark_could_kill_them(make, monkeypatch):
    def kill(*_):
        events.append("killed")
        raise KeyboardInterrupt

    def run():
        _wait_until_the_main_thread_waits_in_shutdown()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        is_asked.wait(HANG_SECS)
        _wait_until_the_main_thread_waits_in_shutdown()
        events.append("saved")

    events, is_asked = [], threading.Event()
    placement = Placement(1, 0, [HOST])
    placement.enter(ProcessId("worker", 0), f"{HOST}:1")
    monkeypatch.setattr(cluster, "Placement", lambda *_: placement)
    made = make(wait=run)
    monkeypatch.setattr(made, "stop", is_asked.set)
    kill.__module__ = "pyspark.core.context"
    former = signal.signal(signal.SIGINT, kill)
    try:
        made.start()
        with pytest.raises(KeyboardInterrupt):
            made.shutdown()
        assert signal.getsignal(signal.SIGINT) is kill  # a second one would kill them
    finally:
        signal.signal(signal.SIGINT, former)
    assert events == ["saved"]
