"""How a process meets the others: `terngrad.join`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from terngrad.cluster import admission
from terngrad.cluster.channel import MembershipError, split_address
from terngrad.cluster.managed.find import find
from terngrad.cluster.managed.role import NothingFoundError, Role
from terngrad.cluster.pulse import Pulse
from terngrad.exchange import collective
from terngrad.exchange.watching import watching
from terngrad.library.group import Group

_CONTROL_PORT_ABOVE = 1000  # of the chief's own port, unless an argument says otherwise

_joined: list[Group] = []


def join(
    hosts: Sequence[str] | None = None,
    *,
    rank: int | None = None,
    control_port: int | None = None,
    timeout_secs: float = 60.0,
) -> Group:
    """Joins the processes that train together.

    Call it once, before TensorFlow computes anything. Without arguments, what started this process
    says which one it is: `python -m terngrad.launch`. Where nothing does, this process is alone.

    Args:
      hosts: "host:port" of each process, the same list on all; port is free on its host.
      rank: index of this process in `hosts`; 0 is the chief.
      control_port: port at which the chief listens for the others; None = its own + 1000.
      timeout_secs: how long to wait for the others; later, a process that is silent for this long
        counts as lost, which ends the others.

    Raises:
      ValueError: an argument, or what the environment says, is wrong.
      MembershipError: names the processes that did not join or cannot be reached.
    """
    role = _role(hosts, rank, control_port, timeout_secs)
    if role is None or role.size == 1:
        return Group()
    if _joined:
        raise ValueError("join: this process has joined before; allowed is once")
    group = _met(role, timeout_secs)
    _joined.append(group)
    return group


def _role(
    hosts: Sequence[str] | None, rank: int | None, control_port: int | None, timeout_secs: float
) -> Role | None:
    """Returns which process this is: from arguments, or else from what launched it."""
    if hosts is None:
        if rank is not None:
            raise ValueError("join: rank needs hosts, which lists HOST:PORT of each process")
        try:
            return find(os.environ, 0, timeout_secs)
        except NothingFoundError:
            return None
    if rank is None:
        raise ValueError("join: hosts needs rank, the index of this process in it")
    _check_hosts(hosts)
    if not 0 <= rank < len(hosts):
        allowed = f"0 to {len(hosts) - 1}, an index of hosts"
        raise ValueError(f"join: rank is {rank}; allowed are {allowed}")
    return Role(
        source="join",
        task_id=rank,
        size=len(hosts),
        worker_hosts=tuple(hosts),
        control_port=control_port,
    )


def _check_hosts(hosts: Sequence[str]) -> None:
    if not hosts or isinstance(hosts, str):
        raise ValueError(f"join: hosts is {hosts!r}; it must list HOST:PORT of each process")
    for host in hosts:
        try:
            split_address(host)
        except MembershipError as error:
            raise ValueError(f"join: hosts: {error}") from None
    if len(set(hosts)) < len(hosts):
        raise ValueError(f"join: hosts: each HOST:PORT must be listed once: {', '.join(hosts)}")


def _met(role: Role, timeout_secs: float) -> Group:
    """Meets the others at the chief's control port; exchanges over TensorFlow's collectives."""
    hosts, rank = role.worker_hosts, role.task_id
    collective.check_start()
    pulse = Pulse()
    peers = admission.join(hosts, rank, _control_address(role), timeout_secs)
    doors = {i: host for i, host in enumerate(hosts) if i != rank}
    with contextlib.ExitStack() as stack:
        watched = watching(hosts, rank, peers, timeout_secs, pulse=pulse, doors=doors)
        membership = stack.enter_context(watched)
        connection = collective.start(hosts, rank, timeout_secs)
        kept = stack.pop_all()
    return Group(rank, len(hosts), connection, membership.agree, pulse, kept)


def _control_address(role: Role) -> str:
    """HOST:PORT at which the chief listens for the others."""
    host, _, port = role.worker_hosts[0].rpartition(":")
    return f"{host}:{role.control_port or int(port) + _CONTROL_PORT_ABOVE}"
