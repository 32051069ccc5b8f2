"""How a process meets the others: `terngrad.join`."""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from terngrad.cluster.addresses import split_address
from terngrad.cluster.managed import launch_variables
from terngrad.cluster.managed.find import find
from terngrad.cluster.managed.role import LAUNCHED, SERVED, NothingFoundError, Role, check_hosts
from terngrad.connect.certificates import Tls
from terngrad.library import engines, serving
from terngrad.library.engines import ENGINES
from terngrad.library.failures import ending_on_report, reporting_failure
from terngrad.library.group import Group
from terngrad.library.join_config import ELASTIC_WAIT_SECS, JoinConfig, Naming
from terngrad.library.serving import Asynchronous

_NUMBERING = ("Slurm", "torchrun")  # launchers that know which tasks share a host
_HOROVOD = "HOROVOD_SIZE"  # set by horovodrun, unless it calls mpirun

_NUMBERS = (numbers.Real, "numbers")
_INTEGERS = (numbers.Integral | None, "integers, or None")
_HOSTS = (Sequence | None, "lists of HOST:PORT, or None")
_TYPES = {
    "hosts": _HOSTS,
    "ps_hosts": _HOSTS,
    "engine": (str, f"auto, {', '.join(ENGINES)}"),
    "control_port": _INTEGERS,
    "tls": (Tls | None, "a terngrad.Tls, or None"),
    "allow_insecure_network": (bool, "True and False"),
    "timeout_secs": _NUMBERS,
    "elastic": (numbers.Integral, "True and False"),  # a bool is one
    "min_size": _INTEGERS,
    "elastic_wait_secs": _NUMBERS,
    "num_replicas_to_aggregate": _INTEGERS,
    "asynchronous": (Asynchronous | None, "a terngrad.Asynchronous, or None"),
    "network_interface": (str, "names of network interfaces"),
}

_P = ParamSpec("_P")
_T = TypeVar("_T")

_joined: list[Group] = []


def _failing_in_a_line(join: Callable[_P, _T]) -> Callable[_P, _T]:
    """Reports an uncaught error in one line, without traceback, where a launcher caused it."""

    @functools.wraps(join)
    def joined(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return join(*args, **kwargs)
        except ValueError as error:
            if launch_variables.MARK in os.environ and sys.excepthook is sys.__excepthook__:
                own = error  # `error` ends with this block
                sys.excepthook = lambda kind, shown, traceback: (
                    print(shown, file=sys.stderr, flush=True)
                    if shown is own
                    else sys.__excepthook__(kind, shown, traceback)
                )
            raise

    return joined


@_failing_in_a_line
def join(
    hosts: Sequence[str] | None = None,
    *,
    rank: int | None = None,
    ps_hosts: Sequence[str] = (),
    job: str = "worker",
    control_port: int | None = None,
    engine: str = "auto",
    tls: Tls | None = None,
    allow_insecure_network: bool = False,
    timeout_secs: float = 60.0,
    elastic: bool = False,
    min_size: int | None = None,
    elastic_wait_secs: float = ELASTIC_WAIT_SECS,
    num_replicas_to_aggregate: int | None = None,
    asynchronous: Asynchronous | None = None,
    network_interface: str = "",
) -> Group:
    """Joins the processes that train together.

    Call it once, first of all. Without arguments, what started this process says which one it is:
    `python -m terngrad.launch`, TF_CONFIG, torchrun, mpirun or Slurm's srun. Where nothing does,
    this process is alone; wrong arguments are named there, too. A parameter server
    serves until the others are done, and ends here.

    Args:
      hosts: "host:port" of each process, the same list on all; each needs its port free.
      rank: index of this process in `hosts`, or of a parameter server in `ps_hosts`; worker 0 is
        the chief.
      ps_hosts: "host:port" of each parameter server, if the processes exchange through these; the
        hosts are then only names.
      job: "worker", or "ps": this process is a parameter server.
      control_port: port at which the chief listens for the others; None = its own + 1000. Not used
        with ps_hosts, elastic or num_replicas_to_aggregate.
      engine: "collective" (all-reduce over sockets), "parameter_server", "mpi" or "horovod"; the
        last two need mpirun or horovodrun, which know the hosts. "auto" = by what started this
        process: mpi for mpirun, horovod for horovodrun, else parameter_server with ps_hosts and
        collective without.
      tls: certificates for other machines: Tls(ca, cert, key), for the engines parameter_server and
        collective; None = those of terngrad.launch --certificates, or in the folder that the
        variable TERNGRAD_CERTIFICATES names, if any.
      allow_insecure_network: allow other machines without certificates; so does the variable
        TERNGRAD_ALLOW_INSECURE_NETWORK=1.
      timeout_secs: how long to wait for the others; later, a process that is silent for this long
        counts as lost, which ends the others.
      elastic: go on without processes that are lost (with ps_hosts: other than the first parameter
        server), and let them join again; the loop is `Group.run_steps`. Not with mpi and horovod.
      min_size: where fewer workers are there, an elastic group waits for others; None = that of
        terngrad.launch --min_workers, or 1.
      elastic_wait_secs: longest such wait; then the group ends. If the network is partitioned, the
        smaller part ends after this time, too.
      num_replicas_to_aggregate: the gradients of so many workers make a step, those of the first to
        be ready; the loop is `Group.run_steps`. None = of all. Not with mpi and horovod.
      asynchronous: the parameter servers hold the parameters and apply each gradient when it
        arrives, and no worker waits for another; see `AsynchronousTraining`. All processes need it.
      network_interface: name of the network interface, such as eth1, at whose address this process
        listens, and from which it connects; "" = that of the variable TERNGRAD_INTERFACE, if any.
        mpi and horovod take their own way for gradients.

    Raises:
      TypeError: an argument has another type.
      ValueError: an argument, or what the environment says, is wrong.
      MembershipError: names the processes that did not join or cannot be reached.
    """
    _check_types(locals())  # the arguments: nothing else has a name yet
    _check_values(engine, timeout_secs, job)
    role = _role(engine, hosts, rank, ps_hosts, job, control_port, timeout_secs, network_interface)
    if asynchronous:
        _check_asynchronous(role, elastic, num_replicas_to_aggregate)
    if role is None or (role.size == 1 and not role.ps_hosts):
        _check_alone(tls, elastic, min_size, elastic_wait_secs, num_replicas_to_aggregate)
        return Group()
    if _joined:
        raise ValueError("join: this process has joined before; allowed is once")
    mistake = _mistake(engine, role)
    tls = tls or (None if role.engine in LAUNCHED else _launched_with(role))
    allow_insecure_network |= os.environ.get(launch_variables.INSECURE) == "1"
    if role.engine not in LAUNCHED and not (tls or allow_insecure_network):
        role = _at_loopback(role)
    config = JoinConfig(
        role=role,
        timeout_secs=timeout_secs,
        tls=tls,
        allow_insecure_network=allow_insecure_network,
        num_replicas_to_aggregate=num_replicas_to_aggregate,
        elastic=elastic,
        min_size=_launched_size(elastic) if min_size is None else min_size,
        elastic_wait_secs=elastic_wait_secs,
        synchronous=asynchronous is None,
        folder=asynchronous.folder if asynchronous else "",
        network_interface=network_interface,
    )
    if config.needs_own_servers:
        config = config.with_own_servers()
    if mistake:
        with reporting_failure(config):
            raise mistake
    return _serve_or_join(config, asynchronous)


def _serve_or_join(config: JoinConfig, asynchronous: Asynchronous | None) -> Group:
    """Returns the group of a worker; a parameter server serves and ends this process."""
    if config.role.job_name == "ps":
        serving.serve_and_exit(config, asynchronous)
    with ending_on_report(config):
        group = engines.join(config)
    _joined.append(group)
    return group


def _check_types(given: Mapping[str, Any]) -> None:
    for name, (kinds, allowed) in _TYPES.items():
        if not isinstance(given[name], kinds):
            raise TypeError(f"join: {name} is {given[name]!r}; allowed are {allowed}")


def _check_values(engine: str, timeout_secs: float, job: str) -> None:
    if engine != "auto" and engine not in ENGINES:
        raise ValueError(f"join: engine is {engine!r}; allowed are auto, {', '.join(ENGINES)}")
    if not 0 < timeout_secs < math.inf:
        raise ValueError(f"join: timeout_secs is {timeout_secs}; allowed are more than 0, finite")
    if job not in ("worker", "ps"):
        raise ValueError(f"join: job is {job!r}; allowed are worker and ps")


def _check_alone(
    tls: Tls | None,
    elastic: bool,
    min_size: int | None,
    elastic_wait_secs: float,
    num_replicas_to_aggregate: int | None,
) -> None:
    """Checks what a process alone does not use, as far as the number of processes does not matter.

    A mistake shows before the program runs on several machines.
    """
    naming = Naming()
    if min_size not in (None, 1):
        raise ValueError(f"join: min_size is {min_size}; this process is alone: allowed is 1")
    if elastic_wait_secs != ELASTIC_WAIT_SECS and not elastic:
        raise naming.refuse("elastic_wait_secs", elastic_wait_secs, "needs elastic")
    if not elastic_wait_secs > 0:
        raise naming.refuse("elastic_wait_secs", elastic_wait_secs, "allowed are more than 0")
    if num_replicas_to_aggregate is not None and num_replicas_to_aggregate < 1:
        why = "allowed are 1 and more, up to the number of workers"
        raise naming.refuse("num_replicas_to_aggregate", num_replicas_to_aggregate, why)
    if tls:
        naming.check_tls(tls)


def _check_asynchronous(
    role: Role | None, elastic: bool, num_replicas_to_aggregate: int | None
) -> None:
    if role is None or not role.ps_hosts:
        raise ValueError(
            "join: asynchronous needs parameter servers: ps_hosts, or "
            "python -m terngrad.launch --ps N"
        )
    given = {"elastic": elastic or None, "num_replicas_to_aggregate": num_replicas_to_aggregate}
    for name, value in given.items():
        if value is not None:
            why = "not with asynchronous: no worker waits for another"
            raise ValueError(f"join: {name} is {value}: {why}")


def _role(
    engine: str,
    hosts: Sequence[str] | None,
    rank: int | None,
    ps_hosts: Sequence[str],
    job: str,
    control_port: int | None,
    timeout_secs: float,
    network_interface: str,
) -> Role | None:
    """Returns which process this is, from arguments or from what launched it; None = alone."""
    if engine in LAUNCHED and (hosts is not None or rank is not None):
        raise ValueError(f"join: engine={engine!r} knows the processes: leave out hosts and rank")
    if engine in LAUNCHED:
        return Role(source="join", task_id=0, size=None, variable_update=engine)
    if hosts is not None:
        return _given(hosts, rank, ps_hosts, job, control_port)
    if rank is not None or ps_hosts:
        name = "rank" if rank is not None else "ps_hosts"
        raise ValueError(f"join: {name} needs hosts, which lists HOST:PORT of each process")
    return _found(timeout_secs, network_interface)


def _found(timeout_secs: float, network_interface: str) -> Role | None:
    """Returns which process this is, from what launched it; None = alone."""
    if _HOROVOD in os.environ:
        return Role(source="horovodrun", task_id=0, size=None, variable_update="horovod")
    try:
        return find(os.environ, 0, timeout_secs, network_interface)
    except NothingFoundError as error:
        if os.environ.get("SLURM_NTASKS", "1") != "1":
            warnings.warn(f"join: this process trains alone: {error}", stacklevel=4)
        return None


def _given(
    hosts: Sequence[str],
    rank: int | None,
    ps_hosts: Sequence[str],
    job: str,
    control_port: int | None,
) -> Role:
    """Returns which process this is, from arguments."""
    if rank is None:
        raise ValueError("join: hosts needs rank, the index of this process in it")
    _check_hosts("hosts", hosts)
    if ps_hosts or job == "ps":
        _check_hosts("ps_hosts", ps_hosts)
    name, own = ("ps_hosts", ps_hosts) if job == "ps" else ("hosts", hosts)
    if not isinstance(rank, numbers.Integral):
        raise TypeError(f"join: rank is {rank!r}; allowed are integers")
    if not 0 <= rank < len(own):
        allowed = f"0 to {len(own) - 1}, an index of {name}"
        raise ValueError(f"join: rank is {rank}; allowed are {allowed}")
    return Role(
        source="join",
        job_name=job,
        task_id=int(rank),
        size=len(hosts),
        worker_hosts=tuple(hosts),
        ps_hosts=tuple(ps_hosts or ()),
        control_port=control_port,
    )


def _check_hosts(name: str, hosts: Sequence[str]) -> None:
    if not hosts or isinstance(hosts, str):
        raise ValueError(f"join: {name} is {hosts!r}; it must list HOST:PORT of each process")
    if not all(isinstance(host, str) for host in hosts):
        raise TypeError(f"join: {name} is {hosts!r}; it must list HOST:PORT of each process")
    check_hosts(f"join: {name}", hosts)


def _mistake(engine: str, role: Role) -> ValueError | None:
    """Returns the error of an engine that does not fit; None if it does."""
    if engine == "auto":
        return None
    if (engine == SERVED) != bool(role.ps_hosts):
        why = "needs ps_hosts" if engine == SERVED else "must not have ps_hosts"
        return ValueError(f"join: engine={engine!r} {why}")
    if role.variable_update and engine != role.variable_update:
        return ValueError(
            f"join: engine is {engine!r}; {role.source} started this process, which "
            f"allows {role.variable_update}"
        )
    return None


def _launched_size(elastic: bool) -> int:
    """Returns the workers that terngrad.launch --min_workers asks for; 1 = it does not."""
    found = int(os.environ.get(launch_variables.MIN_SIZE, 1))
    if found > 1 and not elastic:
        raise ValueError("join: terngrad.launch --min_workers needs join(elastic=True)")
    return found


def _launched_with(role: Role) -> Tls | None:
    """Returns the certificates that terngrad.launch names, if it does."""
    if not (folder := os.environ.get(launch_variables.CERTIFICATES)):
        return None
    hosts = role.ps_hosts if role.job_name == "ps" else role.worker_hosts
    own = os.path.join(folder, split_address(hosts[role.task_id])[0])
    deny = os.path.join(folder, "denied.txt")
    ca = os.path.join(folder, "ca.crt")
    return Tls(ca, f"{own}.crt", f"{own}.key", deny if os.path.exists(deny) else "")


def _at_loopback(role: Role) -> Role:
    """Returns the role with loopback addresses, which are private, if all are on one host.

    Only launchers that number the tasks of their nodes know that they are. Given addresses may be
    alike on several hosts, such as the published ports of containers.
    """
    names = {split_address(host)[0] for host in (*role.worker_hosts, *role.ps_hosts)}
    if not role.source.startswith(_NUMBERING) or len(names) > 1:
        return role
    moved = lambda hosts: tuple(f"127.0.0.1:{split_address(host)[1]}" for host in hosts)
    return dataclasses.replace(
        role, worker_hosts=moved(role.worker_hosts), ps_hosts=moved(role.ps_hosts)
    )
