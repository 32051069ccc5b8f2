"""The variables by which terngrad.launch tells the processes that it starts who they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from terngrad.cluster.channel import MembershipError, split_address
from terngrad.cluster.managed.role import ManagedError, Role, whole_number

MARK = "TERNGRAD_HOSTS"
_RANK, _CONTROL_PORT = "TERNGRAD_RANK", "TERNGRAD_CONTROL_PORT"
_SOURCE = "terngrad.launch"


def variables(hosts: Sequence[str], rank: int, control_port: int) -> dict[str, str]:
    """Returns the variables of one process.

    Args:
      hosts: "host:port" of each worker.
      rank: index of the process among them.
      control_port: at which worker 0 listens for the others.
    """
    return {MARK: ",".join(hosts), _RANK: str(rank), _CONTROL_PORT: str(control_port)}


def role(environment: Mapping[str, str]) -> Role:
    """Reads the variables.

    Raises:
      ManagedError: they do not fit together.
    """
    hosts = tuple(environment[MARK].split(","))
    for host in hosts:
        try:
            split_address(host)
        except MembershipError as error:
            raise ManagedError(f"{MARK}: {error}") from None
    number = lambda name: whole_number(_SOURCE, name, environment.get(name))
    if (rank := number(_RANK)) >= len(hosts):
        raise ManagedError(f"{_RANK} is {rank}; allowed are 0 to {len(hosts) - 1}")
    return Role(
        source=_SOURCE,
        task_id=rank,
        size=len(hosts),
        worker_hosts=hosts,
        control_port=number(_CONTROL_PORT),
    )
