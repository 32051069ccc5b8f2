"""The variables by which terngrad.launch gives each process its role."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from terngrad.cluster.managed.role import (
    ManagedError,
    Role,
    check_hosts,
    port_number,
    whole_number,
)

MARK = "TERNGRAD_HOSTS"
INSECURE = "TERNGRAD_ALLOW_INSECURE_NETWORK"  # "1": the user trusts the network between the hosts
CERTIFICATES = "TERNGRAD_CERTIFICATES"  # folder of scripts/make_certs.sh on each host
MIN_SIZE = "TERNGRAD_MIN_SIZE"  # workers that an elastic group needs, unless `join` says it
_RANK, _CONTROL_PORT = "TERNGRAD_RANK", "TERNGRAD_CONTROL_PORT"
_PS_HOSTS, _JOB = "TERNGRAD_PS_HOSTS", "TERNGRAD_JOB"
_SOURCE = "terngrad.launch"


def variables(
    hosts: Sequence[str],
    rank: int,
    control_port: int,
    ps_hosts: Sequence[str] = (),
    job: str = "worker",
) -> dict[str, str]:
    """Returns the variables of one process.

    Args:
      hosts: "host:port" of each worker.
      rank: index of the process among those of its job.
      control_port: at which worker 0 listens for the others; not used with parameter servers.
      ps_hosts: "host:port" of each parameter server.
      job: "worker" or "ps".
    """
    found = {MARK: ",".join(hosts), _RANK: str(rank), _CONTROL_PORT: str(control_port)}
    return found | ({_PS_HOSTS: ",".join(ps_hosts), _JOB: job} if ps_hosts else {})


def role(environment: Mapping[str, str]) -> Role:
    """Reads the variables.

    Raises:
      ManagedError: they do not fit together.
    """
    jobs = {"worker": _hosts(environment, MARK), "ps": _hosts(environment, _PS_HOSTS)}
    number = lambda name: whole_number(_SOURCE, name, environment.get(name))
    if (job := environment.get(_JOB, "worker")) not in jobs:
        raise ManagedError(f"{_JOB} is {job!r}; allowed are {' and '.join(jobs)}")
    if (rank := number(_RANK)) >= len(jobs[job]):
        raise ManagedError(f"{_RANK} is {rank}; the job {job} has {len(jobs[job])} processes")
    control_port = environment.get(_CONTROL_PORT)
    return Role(
        source=_SOURCE,
        job_name=job,
        task_id=rank,
        size=len(jobs["worker"]),
        worker_hosts=jobs["worker"],
        ps_hosts=jobs["ps"],
        control_port=None if jobs["ps"] else port_number(_SOURCE, _CONTROL_PORT, control_port),
    )


def _hosts(environment: Mapping[str, str], name: str) -> tuple[str, ...]:
    hosts = tuple(environment[name].split(",")) if name in environment else ()
    check_hosts(name, hosts)
    return hosts
