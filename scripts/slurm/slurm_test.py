"""The batch scripts, with commands in place of Slurm's that set what a real srun sets.

The scripts were also tried on a Slurm of three nodes; docs/managed-clusters.md tells how.
"""

import os
import sys
from pathlib import Path

import pytest

from terngrad.testing.processes import Started

exhaustive = pytest.mark.exhaustive
_REPO = Path(__file__).parents[2]
_JOB = str(os.getpid())  # so that two of these tests use different ports

# Runs the command once a task, all on this machine, the only node.
_SRUN = """#!/usr/bin/env bash
while [[ "$1" == --* ]]; do shift; done
for ((task = 0; task < TASKS; task++)); do
  SLURM_STEP_ID=0 SLURM_PROCID="${task}" SLURM_NODEID=0 SLURM_STEP_TASKS_PER_NODE="${TASKS}" \\
    SLURM_STEP_NODELIST="${SLURM_JOB_NODELIST}" SLURMD_NODENAME="${SLURM_JOB_NODELIST}" \\
    SLURM_GTIDS="$(seq -s, 0 $((TASKS - 1)))" "$@" &
done
for job in $(jobs -p); do wait "${job}" || exit; done
"""
_SCONTROL = '#!/usr/bin/env bash\necho "${3}"\n'


def started(script, tasks, tmp_path, *arguments):
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, text in {"srun": _SRUN, "scontrol": _SCONTROL}.items():
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
    }
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


@pytest.mark.parametrize("script", ["all_reduce.sbatch", "parameter_servers.sbatch"])
def test_without_a_program_the_usage_is_printed(tmp_path, script):
    with started(script, 1, tmp_path) as run:
        assert run.finish() == 1
    assert run.lines[0].startswith("Usage, in the repository: sbatch [OPTION...] scripts/slurm/")


def test_a_failed_task_fails_the_job(tmp_path):
    with started("all_reduce.sbatch", 1, tmp_path, "inception.no_such_program") as run:
        assert run.finish() == 1
