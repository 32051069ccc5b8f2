"""Kubeflow Trainer's TrainJob: its torch policy sets torchrun's options as variables in each pod.

Where the pods run torchrun, torchrun.py reads what that sets. Where they run the program itself,
one process in each, the name of the first pod gives the names of all. The names stay the same when
a pod is replaced, so its process can join again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from terngrad.cluster.addresses import CONTROL_PORT_ABOVE, LAST_PORT, host_and_port
from terngrad.cluster.managed.role import (
    ManagedError,
    Role,
    check_hosts,
    port_number,
    ranked,
    whole_number,
)

_NODES, _RANK = "PET_NNODES", "PET_NODE_RANK"
_ADDRESS, _PORT = "PET_MASTER_ADDR", "PET_MASTER_PORT"
_PROCESSES = "PET_NPROC_PER_NODE"
# With the variable of an indexed Job of Kubernetes: elsewhere these are torchrun's options alone.
MARKS = frozenset((_NODES, _RANK, _ADDRESS, _PORT, "JOB_COMPLETION_INDEX"))
_SOURCE = "TrainJob"
_FIRST = re.compile(r"(.*-)0(\..*)?")  # pod 0 of a job set's job, and its service
_BY_DEVICES = ("auto", "cpu", "gpu")  # one process uses them all


def role(environment: Mapping[str, str], ps_tasks: int) -> Role:
    """Returns the role of the process of a pod; the first pods are the parameter servers.

    Raises:
      ManagedError: a variable is wrong, or asks for several processes in a pod.
    """
    number = lambda name: whole_number(_SOURCE, name, environment[name])
    rank, size = number(_RANK), number(_NODES)
    if rank >= size:
        raise ManagedError(f"{_SOURCE}: {_RANK} is {rank}, but {_NODES} {size}")
    port = port_number(_SOURCE, _PORT, environment[_PORT], LAST_PORT - CONTROL_PORT_ABOVE)
    if (processes := environment.get(_PROCESSES, "1")) not in ("1", *_BY_DEVICES):
        raise ManagedError(
            f"{_SOURCE}: {_PROCESSES} is {processes}; without torchrun a pod has 1 process: set "
            "numProcPerNode to 1"
        )
    if not (name := _FIRST.fullmatch(environment[_ADDRESS])):
        raise ManagedError(
            f"{_SOURCE}: {_ADDRESS} is {environment[_ADDRESS]!r}; it must be the name of a pod "
            "with the index 0, as NAME-node-0-0.NAME"
        )
    before, after = name[1], name[2] or ""
    addresses = [host_and_port(f"{before}{i}{after}", port) for i in range(size)]
    check_hosts(f"{_SOURCE}: {_ADDRESS}", addresses)
    return ranked(_SOURCE, rank, addresses, ps_tasks, control_port=port + CONTROL_PORT_ABOVE)
