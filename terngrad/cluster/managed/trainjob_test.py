"""Pods of a TrainJob; the variables are those that Kubeflow Trainer's torch policy sets."""

import pytest

from terngrad.cluster.managed.find import find
from terngrad.cluster.managed.role import ManagedError, NothingFoundError

# Of the pod with index 1 of the TrainJob "job".
POD = {
    "PET_NNODES": "3",
    "PET_NPROC_PER_NODE": "1",
    "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "job-node-0-0.job",
    "PET_MASTER_PORT": "29500",
    "JOB_COMPLETION_INDEX": "1",
}
NAMES = tuple(f"job-node-0-{i}.job:29500" for i in range(3))


def test_all_pods_have_the_names_of_their_service():
    role = find(POD, 0, 1.0)
    assert str(role) == "TrainJob: worker 1 of 3"
    assert (role.task_id, role.worker_hosts, role.control_port) == (1, NAMES, 30500)


def test_the_first_pods_are_the_ps():
    role = find(POD, 1, 1.0)
    assert str(role) == "TrainJob: worker 0 of 2, beside 1 ps"
    assert (role.ps_hosts, role.worker_hosts) == (NAMES[:1], NAMES[1:])


def test_what_torchrun_sets_in_a_pod_counts_before():
    inside = {"RANK": "9", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}
    with pytest.raises(ManagedError, match="torchrun: RANK is 9, but WORLD_SIZE 2"):
        find(POD | inside, 0, 1.0)


def test_options_of_torchrun_outside_of_a_job_name_no_training():
    options = {name: value for name, value in POD.items() if name.startswith("PET_")}
    with pytest.raises(NothingFoundError):
        find(options, 0, 1.0)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"PET_NODE_RANK": "3"}, "PET_NODE_RANK is 3, but PET_NNODES 3"),
        ({"PET_NNODES": "1:4"}, "the variable PET_NNODES is '1:4', not a whole number"),
        ({"PET_NPROC_PER_NODE": "4"}, "PET_NPROC_PER_NODE is 4; .* set numProcPerNode to 1"),
        ({"PET_MASTER_ADDR": "10.0.0.4"}, "PET_MASTER_ADDR is '10.0.0.4'; it must be the name"),
        ({"PET_MASTER_ADDR": "a..b-0"}, "PET_MASTER_ADDR: 'a..b-0' cannot be a host"),
        ({"PET_MASTER_PORT": "65000"}, "PET_MASTER_PORT is 65000; allowed are 1 to 64535"),
    ],
)
def test_what_does_not_fit_is_named(change, why):
    with pytest.raises(ManagedError, match=f"TrainJob: .*{why}"):
        find(POD | change, 0, 1.0)
    assert find(POD | {"PET_NPROC_PER_NODE": "auto"}, 0, 1.0).size == 3
