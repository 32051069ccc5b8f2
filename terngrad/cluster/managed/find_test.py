"""Which environment counts where several are there at once."""

import pytest

from terngrad.cluster.managed.find import find
from terngrad.cluster.managed.role import ManagedError

SLURM = {
    "SLURM_JOB_ID": "4",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "node[01-02]",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
    "SLURM_PROCID": "1",
    "SLURM_NODEID": "0",
    "SLURM_GTIDS": "0,1",
}
BATCH_SCRIPT = {"SLURM_JOB_ID": "5", "SLURM_PROCID": "0", "SLURM_NTASKS": "3"}
PMI = {"PMI_RANK": "1", "PMI_SIZE": "3", "PMI_FD": "13"}
HYDRA = PMI | {"MPI_LOCALNRANKS": "2", "MPI_LOCALRANKID": "1"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3", "PMIX_RANK": "1"}
TF_CONFIG = {
    "TF_CONFIG": '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}'
}


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        (SLURM, "Slurm step 4.0: worker 1 of 3"),
        (SLURM | PMI, "Slurm step 4.0: worker 1 of 3"),  # srun --mpi=pmi2
        (SLURM | {"PMIX_RANK": "1"}, "Slurm step 4.0: worker 1 of 3"),  # srun --mpi=pmix
        (SLURM | HYDRA, "MPICH: worker 1 of 3"),  # mpirun, whose helpers srun starts
        (SLURM | OPEN_MPI, "Open MPI: worker 1 of 3"),
        (PMI, "PMI: worker 1 of 3"),
        ({"PMIX_RANK": "2", "PMIX_NAMESPACE": "x"}, "PMIx: worker 2"),
        (SLURM | TF_CONFIG, "TF_CONFIG: worker 0 of 1"),
        (SLURM | {"TF_CONFIG": ""}, "Slurm step 4.0: worker 1 of 3"),
        (SLURM | {"TF_CONFIG": "{}"}, "Slurm step 4.0: worker 1 of 3"),
    ],
)
def test_the_launcher_that_is_nearest_counts(environment, text):
    assert str(find(environment, 0, 1.0)) == text


def test_an_mpi_launcher_names_its_engine_only():
    assert find(HYDRA, 0, 1.0).settings == {"variable_update": "mpi"}


@pytest.mark.parametrize(
    ("environment", "ps_tasks", "why"),
    [
        ({}, 0, "found none of TF_CONFIG, Slurm, MPI, PMIx, torchrun and TrainJob$"),
        ({"TF_CONFIG": "{}"}, 0, "found none of .*; TF_CONFIG names no cluster"),
        (BATCH_SCRIPT, 0, "found none of .*; within a Slurm job start the program with srun"),
        (OPEN_MPI, 1, "Open MPI says which tasks are ps: leave out --num_ps_tasks"),
        (TF_CONFIG, 1, "TF_CONFIG says which tasks are ps"),
    ],
)
def test_what_is_not_found_or_does_not_fit_is_named(environment, ps_tasks, why):
    with pytest.raises(ManagedError, match=why):
        find(environment, ps_tasks, 1.0)
