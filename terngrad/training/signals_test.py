"""Signals ask a training to end, and a thread acts where its steps are stuck."""

import os
import signal
import subprocess
import sys
import threading

from terngrad.testing.limits import HANG_SECS
from terngrad.training.signals import StopRequest, save_while_stuck

# Without TensorFlow, whose threads a forked process would lack.
_FORKS = """
import multiprocessing, time
from terngrad.training.signals import StopRequest
def work(started):
    started.set()
    time.sleep(900)
forked = multiprocessing.get_context("fork")
with StopRequest(stuck=lambda *_: None) as stop:
    started = forked.Event()
    child = forked.Process(target=work, args=(started,))
    child.start()
    started.wait()
    child.terminate()
    child.join()
    print(child.exitcode, stop.signal)
"""


def test_a_forked_process_ends_at_a_signal_that_the_parent_does_not_note():
    done = subprocess.run(
        [sys.executable, "-c", _FORKS],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_SECS,
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)),
    )
    assert (done.stdout, done.stderr) == (f"{-signal.SIGTERM} None\n", "")


def test_only_a_signal_before_the_first_step_ends_the_process_at_once():
    ended = threading.Event()
    signals = []

    def end(stop):  # would end the process
        signals.append(stop)
        ended.set()

    with StopRequest(end) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert ended.wait(HANG_SECS)
        stop.first_step_is_made()
        stop.signal = None
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signal == signal.SIGTERM
    assert signals == [signal.SIGINT]


def test_a_thread_acts_where_the_steps_under_way_take_long_after_a_signal(monkeypatch):
    monkeypatch.setattr("terngrad.training.signals._STUCK_SECS", 0.01)
    began, ended, seen = threading.Event(), threading.Event(), []

    def save(number, is_over):
        seen.append((number, is_over.is_set()))
        began.set()
        assert is_over.wait(HANG_SECS)
        ended.set()

    with StopRequest(stuck=save) as stop:
        stop.first_step_is_made()
        os.kill(os.getpid(), signal.SIGTERM)
        assert began.wait(HANG_SECS)
        assert stop.signal == signal.SIGTERM
    assert ended.wait(HANG_SECS)
    assert seen == [(signal.SIGTERM, False)]


def test_no_thread_acts_where_they_end_soon(monkeypatch):
    monkeypatch.setattr("terngrad.training.signals._STUCK_SECS", HANG_SECS)
    before, seen = set(threading.enumerate()), []
    with StopRequest(stuck=lambda *given: seen.append(given)):
        (watching,) = set(threading.enumerate()) - before
        os.kill(os.getpid(), signal.SIGTERM)
    watching.join(HANG_SECS)
    assert (seen, watching.is_alive()) == ([], False)


def test_each_change_of_what_is_saved_is_said_once_until_the_steps_are_over(monkeypatch):
    monkeypatch.setattr("terngrad.training.signals._POLL_SECS", 0.0)
    is_over, saved, lines, rounds = threading.Event(), iter(["", "", "saved a", "saved a"]), [], []

    def then():
        rounds.append(1)
        if len(rounds) == 4:
            is_over.set()

    save_while_stuck(signal.SIGTERM, is_over, lambda: next(saved), lines.append, then)
    waits = "waits for the step under way."
    assert lines == [f"SIGTERM: {waits}", f"SIGTERM: saved a; {waits}"]
