"""Signals during fit, where the terminal is gone."""

import os
import signal
import subprocess
import sys

from terngrad.testing.limits import HANG_SECS

PROGRAM = """
import os, sys, time
from terngrad.library.keras.signals import Signals

def fit():
    signals = Signals()
    signals.catch(fit.__code__)
    print("ready", flush=True)
    while not any(signals.seen()):
        time.sleep(0.01)
    print("a progress bar", flush=True)
    with open(sys.argv[1], "w") as file:
        file.write("saved")
    os._exit(0)  # a hangup may come twice: while Python ends, it kills as if nothing caught it

fit()
"""


def test_a_hangup_is_noted_and_prints_to_the_closed_terminal_do_no_harm(tmp_path):
    terminal, end = os.openpty()
    saved = tmp_path / "saved"
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(saved)], stdout=end, stderr=end
        )
    finally:
        signal.signal(signal.SIGHUP, before)
    os.close(end)
    assert b"ready" in os.read(terminal, 100)
    os.close(terminal)
    process.send_signal(signal.SIGHUP)
    assert (process.wait(timeout=HANG_SECS), saved.exists()) == (0, True)
    assert saved.read_text() == "saved"
