"""Which process of a training this one is, and where the others are."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from terngrad.cluster.addresses import CONTROL_PORT_ABOVE, LAST_PORT, split_address
from terngrad.cluster.errors import MembershipError

SERVED, COLLECTIVE = "parameter_server", "collective"  # engines that connect the processes
LAUNCHED = ("mpi", "horovod")  # engines whose launcher knows the processes
_MAX_DIGITS = 18  # int() refuses more than 4,300


class ManagedError(ValueError):
    """Says why the environment does not tell which process this is."""


class NothingFoundError(ManagedError):
    """The environment names no training."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Role:
    """The role of this process, from its environment. Fields have the names of the programs' flags.

    Attributes:
      source: where this was found, in words.
      task_id: index of this process among those of its job.
      worker_hosts: "host:port" of each worker; empty where the engine knows them.
      job_name: "worker" or "ps".
      ps_hosts: "host:port" of each ps.
      control_port: at which worker 0 listens for the others; None = as without a managed cluster.
      variable_update: engine that the launcher connects; None = the flags' choice.
      size: number of workers; None = unknown.
    """

    source: str
    task_id: int
    size: int | None
    worker_hosts: tuple[str, ...] = ()
    job_name: str = "worker"
    ps_hosts: tuple[str, ...] = ()
    control_port: int | None = None
    variable_update: str | None = None

    def __str__(self) -> str:
        of_workers = f" of {self.size}" if self.size else ""
        if self.job_name == "ps":
            return (
                f"{self.source}: ps {self.task_id} of {len(self.ps_hosts)}, for {self.size} workers"
            )
        beside = f", beside {len(self.ps_hosts)} ps" if self.ps_hosts else ""
        return f"{self.source}: worker {self.task_id}{of_workers}{beside}"

    @property
    def engine(self) -> str:
        """The engine of the exchange."""
        return self.variable_update or (SERVED if self.ps_hosts else COLLECTIVE)

    @property
    def settings(self) -> dict[str, object]:
        """The fields that a program needs, by the names of its flags."""
        if self.variable_update:  # its engine knows the rest
            return {"variable_update": self.variable_update}
        control = {} if self.control_port is None else {"control_port": self.control_port}
        names = ("job_name", "task_id", "worker_hosts", "ps_hosts")
        return {name: getattr(self, name) for name in names} | control


def control_address(worker_hosts: Sequence[str], control_port: int | None) -> str:
    """Returns HOST:PORT at which the chief listens for the others.

    Args:
      worker_hosts: "host:port" of each worker.
      control_port: its port; None = `CONTROL_PORT_ABOVE` above the chief's own, perhaps none.
    """
    host, _, port = worker_hosts[0].rpartition(":")
    return f"{host}:{int(port) + CONTROL_PORT_ABOVE if control_port is None else control_port}"


def ranked(
    source: str, rank: int, addresses: Sequence[str], ps_tasks: int, control_port: int
) -> Role:
    """Returns the role of a task that an environment only numbers: the first tasks are the ps.

    Args:
      source: see `Role`.
      rank: number of this task.
      addresses: "host:port" of each task.
      ps_tasks: how many are parameter servers.
      control_port: see `Role`; with parameter servers nobody listens there.

    Raises:
      ManagedError: no task would be a worker.
    """
    if ps_tasks >= len(addresses):
        tasks = "1 task" if len(addresses) == 1 else f"{len(addresses)} tasks"
        raise ManagedError(f"{source} has {tasks}: with --num_ps_tasks={ps_tasks} none is a worker")
    is_ps = rank < ps_tasks
    return Role(
        source=source,
        job_name="ps" if is_ps else "worker",
        task_id=rank if is_ps else rank - ps_tasks,
        size=len(addresses) - ps_tasks,
        worker_hosts=tuple(addresses[ps_tasks:]),
        ps_hosts=tuple(addresses[:ps_tasks]),
        control_port=None if ps_tasks else control_port,
    )


def whole_number(source: str, name: str, text: str | None) -> int:
    """Returns a whole number from an environment variable.

    Args:
      source: who sets the variable, for the message.
      name: of the variable.
      text: its value; None where it is not set.

    Raises:
      ManagedError: it is missing or no whole number.
    """
    if text is None:
        raise ManagedError(f"{source}: the variable {name} is missing")
    return parsed_number(text, f"{source}: the variable {name}")


def port_number(source: str, name: str, text: str | None, last: int = LAST_PORT) -> int:
    """Returns a port from an environment variable.

    Args:
      source: see `whole_number`, as for the rest.
      name: likewise.
      text: likewise.
      last: highest port that is allowed.

    Raises:
      ManagedError: it is missing or no such port.
    """
    port = whole_number(source, name, text)
    if not 0 < port <= last:
        raise ManagedError(f"{source}: the variable {name} is {port}; allowed are 1 to {last}")
    return port


def parsed_number(text: str, what: str) -> int:
    """Returns a whole number; raises ManagedError, which begins with `what`, if it is none."""
    if not text.isdecimal() or len(text) > _MAX_DIGITS:
        raise ManagedError(
            f"{what} is {text!r:.60}, not a whole number of 1 to {_MAX_DIGITS} digits"
        )
    return int(text)


def check_hosts(source: str, hosts: Sequence[str]) -> None:
    """Raises ManagedError, which names `source`, unless each of `hosts` is another "host:port"."""
    for host in hosts:
        try:
            split_address(host)
        except MembershipError as error:
            raise ManagedError(f"{source}: {error}") from None
    if len(set(hosts)) < len(hosts):
        raise ManagedError(f"{source}: each HOST:PORT must be listed once: {', '.join(hosts)}")
