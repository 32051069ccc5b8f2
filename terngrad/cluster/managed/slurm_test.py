"""The tasks of a Slurm step; environments and node lists were recorded from Slurm 22.05."""

import os
import re
import shutil
import subprocess

import pytest

from terngrad.cluster.managed import slurm
from terngrad.cluster.managed.role import ManagedError

# What `scontrol show hostnames` printed.
LISTS = {
    "host": "host",
    "a,b[1-2],c": "a b1 b2 c",
    "node[01-03]": "node01 node02 node03",
    "tux[0-5,12,20-25]": "tux0 tux1 tux2 tux3 tux4 tux5 tux12 tux20 tux21 tux22 tux23 tux24 tux25",
    "n[008-011,100]": "n008 n009 n010 n011 n100",
    "n[9-11]": "n9 n10 n11",
    "n[09-11]": "n09 n10 n11",
    "n[0-0]": "n0",
    "n[1-2],n[1-2]": "n1 n2 n1 n2",
    "r[1-2]n[01-03]": "r1n01 r1n02 r1n03 r2n01 r2n02 r2n03",
    "n[1-2][3-4]": "n13 n14 n23 n24",
    # Of three brackets and more the first changes faster than the second.
    "n[1-2]a[1-2]b[1-2]": "n1a1b1 n1a1b2 n2a1b1 n2a1b2 n1a2b1 n1a2b2 n2a2b1 n2a2b2",
    "n[1,2-3]a[5,7]b[01-02]": (
        "n1a5b01 n1a5b02 n2a5b01 n2a5b02 n3a5b01 n3a5b02 "
        "n1a7b01 n1a7b02 n2a7b01 n2a7b02 n3a7b01 n3a7b02"
    ),
    "n[1-2]a[1-2]b[1-2]c[1-2]": (
        "n1a1b1c1 n1a1b1c2 n2a1b1c1 n2a1b1c2 n1a2b1c1 n1a2b1c2 n2a2b1c1 n2a2b1c2 "
        "n1a1b2c1 n1a1b2c2 n2a1b2c1 n2a1b2c2 n1a2b2c1 n1a2b2c2 n2a2b2c1 n2a2b2c2"
    ),
    "a, b[1-2] ,c": "a b1 b2 c",
    " a  b,,c, ": "a b c",
}
WRONG = (
    *("n[3-1]", "n[]", "n[a-b]", "n[1,,2]", "n[010-9]", "n[1-3", "", "n]", ","),
    *("n[1-2]a", "n[1-2]a,b", "n[0-65536]", f"n[{'9' * 5000}]"),
)

# The last task of each step.
BLOCK = {  # srun -N3 -n4
    "SLURM_JOB_ID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "node[01-03]",
    "SLURM_STEP_TASKS_PER_NODE": "2,1(x2)",
    "SLURM_PROCID": "3",
    "SLURM_NODEID": "2",
    "SLURM_GTIDS": "3",
}
CYCLIC = BLOCK | {  # srun -N3 -n5 -O -m cyclic
    "SLURM_JOB_ID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_DISTRIBUTION": "cyclic",
    "SLURM_PROCID": "4",
    "SLURM_NODEID": "1",
    "SLURM_GTIDS": "1,4",
}
PLANE = CYCLIC | {  # srun -N2 -n4 -m plane=1
    "SLURM_STEP_NODELIST": "node[01-02]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_DISTRIBUTION": "plane",
    "SLURM_DIST_PLANESIZE": "1",
    "SLURM_PROCID": "3",
    "SLURM_GTIDS": "1,3",
}


@pytest.mark.parametrize(("text", "names"), LISTS.items())
def test_a_list_of_nodes_is_expanded_as_scontrol_does(text, names):
    assert slurm.host_names(text) == names.split()


@pytest.mark.parametrize("text", WRONG, ids=lambda text: text[:12])
def test_a_text_that_is_no_list_of_nodes_is_refused(text):
    with pytest.raises(ManagedError, match=r"not a (list|range) of nodes"):
        slurm.host_names(text)


@pytest.mark.exhaustive
@pytest.mark.parametrize("text", [*LISTS, "big[0001-1200,7],r[1-2]n[01-03]"])
def test_scontrol_agrees(text, tmp_path):
    if not shutil.which("scontrol"):
        pytest.skip("scontrol is not installed: apt-get install slurm-client")
    settings = tmp_path / "slurm.conf"  # without one scontrol ends
    settings.write_text("ClusterName=one\nSlurmctldHost=localhost\n")
    asked = lambda text: subprocess.run(
        ["scontrol", "show", "hostnames", text],
        env=os.environ | {"SLURM_CONF": str(settings)},
        capture_output=True,
        text=True,
        check=False,
    )
    if error := asked("host").stderr.strip():
        pytest.skip(f"scontrol does not run here: {error}")
    assert slurm.host_names(text) == asked(text).stdout.split()


@pytest.mark.parametrize(
    ("environment", "hosts"),
    [
        (BLOCK, ["node01:10064", "node01:10065", "node02:10064", "node03:10064"]),
        (CYCLIC, [f"node0{node}:{port}" for port in (10128, 10129) for node in (1, 2, 3)][:5]),
        (PLANE, ["node01:10128", "node02:10128", "node01:10129", "node02:10129"]),
    ],
)
def test_each_task_is_a_worker_at_its_node(environment, hosts):
    role = slurm.role(environment, 0)
    assert list(role.worker_hosts) == hosts
    assert (role.job_name, role.task_id) == ("worker", int(environment["SLURM_PROCID"]))
    assert role.control_port == int(hosts[0].split(":")[1]) + 63
    assert str(role) == (
        f"Slurm step {environment['SLURM_JOB_ID']}.0: worker {role.task_id} of {len(hosts)}"
    )


def test_the_first_tasks_are_the_ps():
    worker = slurm.role(BLOCK, 2)
    assert (worker.job_name, worker.task_id, worker.control_port) == ("worker", 1, None)
    assert worker.ps_hosts == ("node01:10064", "node01:10065")
    assert worker.worker_hosts == ("node02:10064", "node03:10064")
    ps = slurm.role(BLOCK | {"SLURM_PROCID": "1", "SLURM_NODEID": "0", "SLURM_GTIDS": "0,1"}, 2)
    assert (ps.job_name, ps.task_id) == ("ps", 1)
    assert (ps.ps_hosts, ps.worker_hosts) == (worker.ps_hosts, worker.worker_hosts)
    assert str(ps) == "Slurm step 1.0: ps 1 of 2, for 2 workers"


@pytest.mark.parametrize(
    ("change", "ps_tasks", "why"),
    [
        ({"SLURM_PROCID": None}, 0, "the variable SLURM_PROCID is missing"),
        ({"SLURM_JOB_ID": "x"}, 0, "the variable SLURM_JOB_ID is 'x', not a whole number"),
        ({"SLURM_JOB_ID": "9" * 5000}, 0, "not a whole number of 1 to 18 digits"),
        ({"SLURM_PROCID": "4"}, 0, "SLURM_PROCID is 4 of 4 tasks"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2,1"}, 0, "is '2,1' for 3 nodes"),
        ({"SLURM_STEP_TASKS_PER_NODE": "64,1(x2)"}, 0, "over 63 tasks on node01"),
        ({"SLURM_DISTRIBUTION": "arbitrary"}, 0, "--distribution=arbitrary is not known"),
        ({"SLURM_GTIDS": "1"}, 0, "this node has tasks 1 of the step, not 3"),
        ({}, 4, "with --num_ps_tasks=4 none is a worker"),
    ],
)
def test_what_does_not_fit_is_named(change, ps_tasks, why):
    changed = {name: value for name, value in (BLOCK | change).items() if value is not None}
    if "64" in changed["SLURM_STEP_TASKS_PER_NODE"]:
        changed |= {"SLURM_GTIDS": "65", "SLURM_PROCID": "65"}
    with pytest.raises(ManagedError, match=re.escape(why)):
        slurm.role(changed, ps_tasks)
