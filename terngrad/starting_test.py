"""Signals that arrive while a program loads its modules."""

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
from terngrad import starting
starting.end_at_signals()
if sys.argv[2] == "after":
    starting.stop_ending()
try:
    os.kill(os.getpid(), int(sys.argv[1]))
    while True: pass
except BaseException as error:  # as modules in C do
    raise ImportError("failed to load") from error
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_signal_ends_a_program_that_loads_with_one_line(number, when):
    command = [sys.executable, "-c", PROGRAM, str(int(number)), when]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if when == "before":
        assert (done.returncode, done.stdout) == (128 + number, "")
        assert done.stderr == f"{number.name}: stopped before it began.\n"
    elif number == signal.SIGTERM:
        assert done.returncode == -number
    else:
        assert "KeyboardInterrupt" in done.stderr
