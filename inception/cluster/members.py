"""The processes of a cluster on this machine, and the flags that give each its role."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

Ports = Callable[[int], list[int]]


@dataclasses.dataclass(frozen=True)
class Member:
    """A process of a cluster.

    Attributes:
      index: position among all processes.
      label: first word of its output lines.
      flags: the flags that give it its role.
      is_ps: whether it is a parameter server.
      host: index of its host in a network of namespaces; None = this machine's own network.
    """

    index: int
    label: str
    flags: list[str]
    is_ps: bool = False
    host: int | None = None


def worker_flags(workers: int, ports: Ports) -> list[list[str]]:
    """Returns the flags of each worker of a cluster on this machine; for `ports` see `members`."""
    *found, control = ports(workers + 1)
    hosts = ",".join(f"127.0.0.1:{port}" for port in found)
    common = [f"--worker_hosts={hosts}", f"--control_port={control}"]
    return [[*common, f"--task_id={i}"] for i in range(workers)]


def members(workers: int, ps: int, ports: Ports) -> list[Member]:
    """Returns the workers, then the parameter servers, of a cluster on this machine.

    Args:
      workers: number of workers.
      ps: number of parameter servers.
      ports: returns as many different free ports of this machine as it is asked for.
    """
    if not ps:
        return [Member(i, str(i), flags) for i, flags in enumerate(worker_flags(workers, ports))]
    return _members_at([f"127.0.0.1:{port}" for port in ports(workers + ps)], workers)


def members_on_hosts(addresses: Sequence[str], workers: int) -> list[Member]:
    """Returns the members of a cluster in a network of namespaces, a process on each host.

    Args:
      addresses: HOST:PORT of the workers, then of the parameter servers.
      workers: number of workers.
    """
    found = _members_at(addresses, workers)
    # The traffic between namespaces does not leave this machine.
    insecure = ["--allow_insecure_network=True"]
    return [
        dataclasses.replace(member, host=i, flags=[*insecure, *member.flags])
        for i, member in enumerate(found)
    ]


def _members_at(addresses: Sequence[str], workers: int) -> list[Member]:
    servers = addresses[workers:]
    hosts = [f"--worker_hosts={','.join(addresses[:workers])}"]
    if servers:
        hosts.append(f"--ps_hosts={','.join(servers)}")
    own = lambda job, i: [*hosts, f"--job_name={job}", f"--task_id={i}"]
    return [
        *(Member(i, str(i), own("worker", i)) for i in range(workers)),
        *(Member(workers + i, f"ps {i}", own("ps", i), is_ps=True) for i in range(len(servers))),
    ]
