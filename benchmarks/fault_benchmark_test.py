"""The seconds that a fault costs are those between steps of workers that are well."""

import signal
import subprocess
import sys
import time

import pytest

from benchmarks.workers import processes
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.processes import wait_until

_WORKER = """
import time
print("a line", flush=True)
for step in range(1, 5):
    print("step", step, flush=True)
    time.sleep(0.5 if step == 2 else 0.01)
time.sleep(1e6)
"""


def test_steps_and_the_times_between_them_are_read_off_a_process():
    process = processes.Process([sys.executable, "-c", _WORKER], {})
    try:
        end = time.monotonic() + HANG_SECS
        while process.steps_after(process.started) < 4 and time.monotonic() < end:
            time.sleep(0.01)
        first, *others = process.waits(process.started)
        assert len(others) == 2
        assert max(first, *others) == others[0] >= 0.4
        assert process.first_step_after(process.steps[1]) == process.steps[2]
        assert process.lines == ["a line\n"]
        assert process.is_running()
        process.send(signal.SIGKILL)
        assert not process.is_running()
    finally:
        process.close()


_LAUNCHED = """
import os, sys, time
with open(sys.argv[1], "w") as output:
    for rank in (2, 0):
        print(f"process {os.getpid()} has rank {rank}", file=output)
        print("step", 3 - rank, file=output, flush=True)
    time.sleep(1e6)
"""


def test_a_launched_process_is_known_by_its_pipe_and_its_last_rank(tmp_path):
    process = processes.LaunchedProcess(tmp_path / "pipe")
    launched = subprocess.Popen([sys.executable, "-c", _LAUNCHED, tmp_path / "pipe"])
    try:
        assert not process.is_running()
        wait_until(lambda: process.steps_after(process.started) == 2, "two steps")
        assert (process.pid, process.rank) == (launched.pid, 0)
        assert process.is_running()
        process.send(signal.SIGKILL)
        assert not process.is_running()
        assert launched.wait(HANG_SECS) == -signal.SIGKILL
        process.close()
    finally:
        launched.kill()
        launched.wait()


@pytest.mark.parametrize(
    "flags, named",
    [
        (["--engines=torchft"], "--torch_python"),
        (["--engines=horovod_elastic"], "--horovod_python"),
        (
            ["--engines=horovod_elastic", "--horovod_python=python", "--bandwidth=1gbit"],
            "--bandwidth",
        ),
    ],
)
def test_another_library_without_what_it_needs_is_refused(run, capsys, flags, named):
    with pytest.raises(SystemExit) as ended:
        run("fault_benchmark", *flags)
    assert ended.value.code not in (0, None)
    assert named in capsys.readouterr().err + str(ended.value)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "engine", ["all_reduce", "all_reduce_elastic", "parameter_servers_elastic"]
)
def test_each_fault_of_an_engine_has_its_seconds(run, engine):
    small = ("--rounds=1", "--workers=3", "--timeout_secs=10", f"--engines={engine}")
    found = run("fault_benchmark", *small)["seconds"][engine]
    ends = engine == "all_reduce"
    servers = ["kill_ps"] if "servers" in engine else []
    assert list(found) == ["kill", "kill_first", "stop", *servers]
    assert all(each[0]["ends" if ends else "lost"] > 0 for each in found.values())
