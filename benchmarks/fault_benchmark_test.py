"""The seconds that a fault costs are those between steps of workers that are well."""

import signal
import sys
import time

import pytest

from benchmarks import fault_benchmark
from terngrad.testing.limits import HANG_SECS

_WORKER = """
import time
print("a line", flush=True)
for step in range(1, 5):
    print("step", step, flush=True)
    time.sleep(0.5 if step == 2 else 0.01)
time.sleep(1e6)
"""


def test_steps_and_the_times_between_them_are_read_off_a_process():
    process = fault_benchmark.Process([sys.executable, "-c", _WORKER], {})
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


def test_torchft_without_its_interpreter_is_refused(run, capsys):
    with pytest.raises(SystemExit) as ended:
        run("fault_benchmark", "--engines=torchft")
    assert ended.value.code not in (0, None)
    assert "--torch_python" in capsys.readouterr().err + str(ended.value)


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
