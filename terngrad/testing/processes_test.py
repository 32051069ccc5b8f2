"""Programs that a test starts end with the test, however it ends."""

import sys
import time
from pathlib import Path

import pytest

from terngrad.testing.limits import HANG_SECS
from terngrad.testing.processes import Started, wait_until

FAMILY = """
import subprocess, sys, time
rest = sys.argv[2:]
command = [sys.executable, "-c", sys.argv[1], sys.argv[1], *rest[1:]] if rest else ["sleep", "600"]
print("started", subprocess.Popen(command, start_new_session=True).pid, flush=True)
time.sleep(600)
"""


def runs(process):
    """Returns whether a process runs and is not a zombie."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    # Not by its command line, which is empty for a moment after exec.
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def test_a_failed_test_leaves_no_process_behind():
    command = [sys.executable, "-c", FAMILY, FAMILY, "a child"]
    with pytest.raises(ZeroDivisionError), Started(command) as program:
        program.wait_for(r"started \d+")
        while len(program.lines) < 2:  # a child and a grandchild, each in its own session
            time.sleep(0.01)
        family = [program.process.pid, *(int(line.split()[1]) for line in program.lines)]
        assert all(map(runs, family))
        1 / 0  # noqa: B018
    deadline = time.monotonic() + HANG_SECS
    while any(map(runs, family)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(runs, family))


def test_a_process_that_outlives_its_program_is_seen_and_ended_with_its_group():
    with Started(["bash", "-c", "sleep 600 > /dev/null 2>&1 &"], in_own_group=True) as run:
        run.process.wait()
        assert run.outlived(0.1)
    assert not run.outlived()


SERVER = """
import sys
request = sys.stdin.readline().strip()
print("was asked", file=sys.stderr, flush=True)  # before the worker prints to the same stream
print(request, "tensorflow" in sys.modules, flush=True)
sys.stdin.read()
"""
WORKER = """
import os, sys, time
from terngrad.library import own_server
command = [sys.executable, "-u", "-m", "terngrad.testing.programs.snippet", sys.argv[1]]
server = own_server.subprocess.Popen(command, env=os.environ)
server.stdin.write("a request\\n")
server.stdin.flush()
print("answer:", server.stdout.readline(), server.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_a_server_of_a_forked_program_is_forked_with_tensorflow_and_ends_with_it():
    command = [sys.executable, "-m", "terngrad.testing.programs.snippet", WORKER, SERVER]
    with Started(command) as program:
        program.wait_for("^answer: a request True$")
        program.wait_for("^was asked$")
        server = int(program.wait_for(r"^ \d+$"))
        assert runs(server)
    wait_until(lambda: not runs(server), "for the end of the server")
