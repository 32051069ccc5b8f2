"""TensorFlow's collective runtime: its start and its error messages."""

import contextlib
import sys

import pytest
import tensorflow as tf

from terngrad.exchange.operation_errors import reason
from terngrad.testing.addresses import free_address
from terngrad.testing.exhaustive import sample
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.processes import Started

TIMEOUT_SECS = HANG_SECS
HOSTS = ["one:1", "two:2"]

STARTER = """
import os, signal, sys, threading, time
from terngrad.exchange import collective

def tell(*words):  # a line in one call: two threads tell
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

signal.signal(signal.SIGTERM, lambda *_: tell("SIGTERM") or os._exit(0))

def count():
    for i in range(1000):
        tell("alive", i)
        time.sleep(0.1)

if sys.argv[2] == "0":
    threading.Thread(target=count, daemon=True).start()
collective.start(sys.argv[1].split(","), int(sys.argv[2]), 1.0)
tell("started")
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(TIMEOUT)
""".replace("TIMEOUT", str(TIMEOUT_SECS))


@pytest.mark.slow
@pytest.mark.parametrize("host", sample(["127.0.0.1", "::1"], in_ci=["127.0.0.1"]))
def test_a_process_that_waits_for_the_others_still_runs_and_keeps_its_signals(host):
    try:
        hosts = ",".join(free_address(host) for _ in range(2))
    except OSError:
        pytest.skip(f"this machine has no {host}")
    command = [sys.executable, "-c", STARTER, hosts]
    with contextlib.ExitStack() as stack:
        runs = [stack.enter_context(Started([*command, "0"]))]
        runs[0].wait_for("alive 30$")  # by now it waits for the other
        runs.append(stack.enter_context(Started([*command, "1"])))
        for run in runs:
            run.succeed()
            told = [line for line in run.lines if not line.startswith("alive")]
            assert told[-2:] == ["started", "SIGTERM"]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "Graph execution error:\n\nDetected at node CollectiveReduceV2 defined at (most recent "
            "call last):\n<stack traces unavailable>\n/job:worker/replica:0/task:1 heartbeat "
            "timeout\n\t [[{{node CollectiveReduceV2}}]] [Op:__inference_run_12]",
            "worker 1 (two:2) heartbeat timeout",
        ),
        (
            "Graph execution error:\n\nDetected at node x defined at (most recent call last):\n"
            '  File "a.py", line 3, in f\n\n2 root error(s) found.\n  (0) ABORTED: lost',
            "ABORTED: lost",
        ),
        ("from /job:worker/replica:0/task:0/device:CPU:0: gone", "from worker 0 (one:1): gone"),
        ("one line", "one line"),
        ("{{function_node __wrapped__R_device_/job:worker/task:0}} three values", "three values"),
        ("Graph execution error:\n", "UnavailableError"),
    ],
)
def test_the_informative_line_of_an_error_names_the_workers(message, expected):
    assert reason(tf.errors.UnavailableError(None, None, message), HOSTS) == expected
