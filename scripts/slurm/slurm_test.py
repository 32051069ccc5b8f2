"""The batch scripts, with commands in place of Slurm's that set what a real srun sets.

The scripts were also tried on a Slurm of three nodes; docs/managed-clusters.md tells how.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from terngrad.testing.processes import Started, descendants

exhaustive = pytest.mark.exhaustive
_REPO = Path(__file__).parents[2]
_JOB = str(os.getpid())  # so that two of these tests use different ports

# Runs the command once a task, all on this machine, the only node; ends with the highest status
# of a task.
_SRUN = """#!/usr/bin/env bash
source scripts/common.sh
while [[ "$1" == --* ]]; do echo "srun $1"; shift; done
for ((task = 0; task < TASKS; task++)); do
  SLURM_STEP_ID=0 SLURM_PROCID="${task}" SLURM_NODEID=0 SLURM_STEP_TASKS_PER_NODE="${TASKS}" \\
    SLURM_STEP_NODELIST="${SLURM_JOB_NODELIST}" SLURMD_NODENAME="${SLURM_JOB_NODELIST}" \\
    SLURM_GTIDS="$(seq -s, 0 $((TASKS - 1)))" "$@" &
done
jobs -p > "${CERTS}.tasks"
highest=0
for job in $(jobs -p); do
  await "${job}" && code=0 || code=$?
  highest=$((code > highest ? code : highest))
done
exit "${highest}"
"""
_SCONTROL = """#!/usr/bin/env bash
[[ "$1" == requeue ]] && echo "requeued $2" || echo "$3"
"""
_SCANCEL = """#!/usr/bin/env bash
[[ "$1 $2" == "--signal=TERM ${SLURM_JOB_ID}" ]] && kill -TERM $(cat "${CERTS}.tasks")
"""
_SCRIPTS = sorted((_REPO / "scripts" / "slurm").glob("*.sbatch"))


def started(script, tasks, tmp_path, *arguments, **variables):
    commands = tmp_path / "bin"
    commands.mkdir(exist_ok=True)
    for name, text in {"srun": _SRUN, "scontrol": _SCONTROL, "scancel": _SCANCEL}.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    environment = {
        "PATH": f"{commands}:{os.environ['PATH']}",
        "TASKS": str(tasks),
        "SLURM_JOB_ID": _JOB,
        "SLURM_JOB_NODELIST": "localhost",
        "SLURM_SUBMIT_DIR": str(_REPO),
        "TERNGRAD_VENV": sys.prefix,
        "CERTS": str(tmp_path / "certs"),
    } | variables
    return Started(["bash", str(_REPO / "scripts" / "slurm" / script), *arguments], environment)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "tls", "tasks", "role"),
    [
        ("all_reduce.sbatch", "", 2, "worker 1 of 2."),
        pytest.param("all_reduce.sbatch", "False", 2, "worker 1 of 2.", marks=exhaustive),
        pytest.param(
            *("parameter_servers.sbatch", "", 3, "worker 1 of 2, beside 1 ps."), marks=exhaustive
        ),
    ],
)
def test_the_tasks_of_a_job_train_together(tmp_path, monkeypatch, script, tls, tasks, role):
    monkeypatch.setenv("TLS", tls)
    own = tmp_path / "certs" / "ca.crt"  # of the user, who keeps certificates there
    own.parent.mkdir()
    own.touch()
    program = "inception.mnist_distributed_train"
    flags = [f"--train_dir={tmp_path / 'train'}", "--net=mlp", "--max_steps=4", "--benchmark_mode"]
    with started(script, tasks, tmp_path, program, *flags) as run:
        output = run.succeed()
    assert f"--cluster=auto found Slurm step {_JOB}.0: {role}" in output
    assert f"Finished training at step 4: {tmp_path / 'train' / 'model.ckpt-4'}" in output
    assert ("localhost.crt: made" in output) == (tls != "False")
    assert list(own.parent.iterdir()) == [own]


def pid_of_task(run, task):
    """The process of a task's program."""
    for pid in descendants(run.process.pid):
        folder = Path("/proc", str(pid))
        words = (folder / "cmdline").read_bytes().split(b"\0")
        own = f"SLURM_PROCID={task}".encode()
        if b"--cluster=auto" in words and own in (folder / "environ").read_bytes().split(b"\0"):
            return pid
    raise AssertionError(run.output)


@pytest.mark.slow
@pytest.mark.parametrize(
    "elastic", ["--elastic", pytest.param("--noelastic", marks=exhaustive)], ids=str
)
def test_a_job_that_is_warned_saves_is_requeued_and_goes_on(tmp_path, monkeypatch, elastic):
    monkeypatch.setenv("TLS", "False")
    program = ["inception.mnist_distributed_train", "--net=mlp", "--benchmark_mode", elastic]
    program += [f"--train_dir={tmp_path / 'train'}"]
    start = lambda steps, **variables: started(
        "requeue.sbatch", 2, tmp_path, *program, f"--max_steps={steps}", **variables
    )
    with start(10**6, MAX_RESTARTS="1") as run:
        run.wait_for(r"Worker 0: .* step 10,")
        if elastic == "--elastic":
            os.kill(pid_of_task(run, 1), signal.SIGKILL)
            run.wait_for("Task 1 was killed by signal 9 and is started again")
            run.wait_for("Workers 0 and 1 train from step")
        run.process.send_signal(signal.SIGUSR1)
        assert run.finish() == 128 + signal.SIGTERM, run.output
    assert f"requeued {_JOB}" in run.lines
    saved = max(int(step) for step in re.findall(r"model\.ckpt-(\d+)", run.output))
    with start(saved + 4, SLURM_RESTART_COUNT="1") as run:
        output = run.succeed()
    assert "Slurm has started this job again: 1." in output
    assert f"Finished training at step {saved + 4}: " in output
    assert f"requeued {_JOB}" not in run.lines


@pytest.mark.parametrize("script", _SCRIPTS, ids=lambda path: path.stem)
def test_bash_and_slurm_can_read_a_script(script):
    subprocess.run(["bash", "-n", script], check=True)
    options = re.findall("^#SBATCH (.*)$", script.read_text(), re.MULTILINE)
    assert options and all(len(shlex.split(option)) == 1 for option in options)


@pytest.mark.parametrize("number", ["x", "08"])
def test_law_10_a_number_of_restarts_that_is_none_is_reported(tmp_path, number):
    with started("requeue.sbatch", 1, tmp_path, "a.program", MAX_RESTARTS=number) as run:
        assert run.finish() == 1
    assert run.lines == [f"MAX_RESTARTS={number}: allowed are 0 to 999999"]


@pytest.mark.parametrize("script", [path.name for path in _SCRIPTS])
def test_without_a_program_the_usage_is_printed(tmp_path, script):
    with started(script, 1, tmp_path) as run:
        assert run.finish() == 1
    assert run.lines[0].startswith("Usage, in the repository: sbatch [OPTION...] scripts/slurm/")


@pytest.mark.parametrize("script", [path.name for path in _SCRIPTS])
def test_a_failed_task_fails_the_job_and_srun_does_not_kill_the_others(tmp_path, script):
    with started(script, 1, tmp_path, "inception.no_such_program") as run:
        assert run.finish() == 1
    assert "srun --kill-on-bad-exit=0" in run.lines


_AWAITED = r"""
source scripts/common.sh
trap 'kill -TERM "${child}"; sleep 0.5' USR1 # it ends before the trap does
(trap 'exit 143' TERM; while true; do sleep 0.02; done) &
child=$!
(sleep 0.2; kill -USR1 $$) &
await "${child}"
"""


def test_a_process_that_ends_while_a_trap_runs_has_its_own_code():
    assert subprocess.run(["bash", "-c", _AWAITED], cwd=_REPO, check=False).returncode == 143
