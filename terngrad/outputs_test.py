"""Prints of a training to an output that is lost."""

import io
import os
import signal
import subprocess
import sys

import pytest

from terngrad import outputs
from terngrad.testing.limits import HANG_SECS

TO_A_LOST_READER = """
import signal, sys
from terngrad import outputs
from terngrad.training.signals import StopRequest

signal.signal(signal.SIGHUP, getattr(signal, sys.argv[1]))
outputs.protect()
print("ready", flush=True)
sys.stdin.readline()
for i in range(3):
    print("a line", flush=True)
    print("a warning", file=sys.stderr, flush=True)
sys.exit(StopRequest().signal or 0)
"""
TO_A_FULL_DISK = """
import os, sys
from terngrad import outputs

outputs.protect()
for i in range(3):
    print(f"line {i}", flush=True)
os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT), 1)  # as if there was space again
print("line 3")
"""


@pytest.mark.parametrize("options", [[], ["-u"]])
@pytest.mark.parametrize(
    ("kind", "handler", "asked"),
    [
        ("openpty", "SIG_DFL", signal.SIGHUP),
        ("openpty", "SIG_IGN", 0),  # nohup
        ("pipe", "SIG_DFL", signal.SIGPIPE),
    ],
)
def test_a_lost_reader_is_a_request_to_stop_and_no_error(options, kind, handler, asked):
    reader, output = getattr(os, kind)()
    process = subprocess.Popen(
        [sys.executable, *options, "-c", TO_A_LOST_READER, handler],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
    )
    os.close(output)
    assert b"ready" in os.read(reader, 100)
    os.close(reader)
    process.communicate(timeout=HANG_SECS)
    assert process.returncode == asked


@pytest.mark.parametrize("options", [[], ["-u"]])
def test_a_full_disk_costs_only_lines_and_both_outputs_say_so(tmp_path, options):
    log = tmp_path / "log"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, *options, "-c", TO_A_FULL_DISK, str(log)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=HANG_SECS,
        )
    why = "No space left on device"
    assert done.stderr == f"Lines cannot be printed: {why}; the process goes on.\n"
    assert (done.returncode, log.read_text()) == (0, f"\nLines are missing here: {why}.\nline 3\n")


@pytest.mark.parametrize("is_closed", [False, True])
def test_an_output_without_a_descriptor_stays_as_it_is(monkeypatch, is_closed):
    stream = io.TextIOWrapper(io.BytesIO())
    if is_closed:
        stream.close()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", None)
    outputs.protect()
    assert sys.stdout is stream
    assert sys.stderr is None
