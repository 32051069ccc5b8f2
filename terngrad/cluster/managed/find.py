"""Finds out which process of a training this is, from the variables of its environment."""

from __future__ import annotations

from collections.abc import Mapping

from terngrad.cluster.managed import launch_variables, slurm, tf_config, torchrun, trainjob
from terngrad.cluster.managed.role import ManagedError, NothingFoundError, Role, whole_number

_OPEN_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
_PMI = ("PMI_RANK", "PMI_SIZE")  # MPICH and its derivatives; srun --mpi=pmi2
_OF_MPICH = "MPI_LOCALNRANKS"  # not set by srun
_PMIX = ("PMIX_RANK", "PMIX_SIZE")  # the second is not always set


def find(
    environment: Mapping[str, str],
    ps_tasks: int,
    timeout_secs: float,
    network_interface: str = "",
) -> Role:
    """Returns the role that a managed cluster gives to this process.

    A launcher's own variables count before those of the Slurm job that it runs in.

    Args:
      environment: variables of this process.
      ps_tasks: how many of the first tasks are parameter servers, where tasks are only numbered.
      timeout_secs: how long processes that must first exchange addresses wait for each other.
      network_interface: name of the interface whose address this process gives the others, where
        it must; see interfaces.chosen.

    Raises:
      NothingFoundError: nothing is found.
      ManagedError: the variables contradict each other, or one is invalid.
    """
    if launch_variables.MARK in environment:
        return _without_ps_tasks(launch_variables.role(environment), ps_tasks)
    if (text := environment.get("TF_CONFIG")) and (role := tf_config.role(text)):
        return _without_ps_tasks(role, ps_tasks)
    if environment.keys() >= torchrun.MARKS:
        return torchrun.role(environment, ps_tasks, timeout_secs, network_interface)
    if environment.keys() >= trainjob.MARKS:
        return trainjob.role(environment, ps_tasks)
    if _OPEN_MPI[1] in environment:
        return _without_ps_tasks(_connected("Open MPI", environment, *_OPEN_MPI), ps_tasks)
    if _OF_MPICH in environment and _PMI[1] in environment:
        return _without_ps_tasks(_connected("MPICH", environment, *_PMI), ps_tasks)
    if slurm.MARK in environment:
        return slurm.role(environment, ps_tasks)
    if _PMI[1] in environment:
        return _without_ps_tasks(_connected("PMI", environment, *_PMI), ps_tasks)
    if _PMIX[0] in environment:
        return _without_ps_tasks(_connected("PMIx", environment, *_PMIX), ps_tasks)
    batch = "SLURM_JOB_ID" in environment
    hint = "; within a Slurm job start the program with srun" if batch else ""
    hint += "; TF_CONFIG names no cluster" if environment.get("TF_CONFIG") else ""
    raise NothingFoundError(
        f"found none of TF_CONFIG, Slurm, MPI, PMIx, torchrun and TrainJob{hint}"
    )


def _connected(source: str, environment: Mapping[str, str], rank: str, size: str) -> Role:
    """A worker whose launcher connects it to the others."""
    number = lambda name: whole_number(source, name, environment.get(name))
    return Role(
        source=source,
        variable_update="mpi",
        task_id=number(rank),
        size=number(size) if size in environment else None,
    )


def _without_ps_tasks(role: Role, ps_tasks: int) -> Role:
    if ps_tasks:
        raise ManagedError(f"{role.source} says which tasks are ps: leave out --num_ps_tasks")
    return role
