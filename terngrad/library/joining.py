"""How a process meets the others: `terngrad.join`."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping, Sequence

from terngrad.cluster import admission
from terngrad.cluster.channel import MembershipError, split_address
from terngrad.cluster.pulse import Pulse
from terngrad.exchange import collective
from terngrad.exchange.watching import watching
from terngrad.library.group import Group

CONTROL_PORT_ABOVE = 1000  # of the chief's own port, unless an argument says otherwise
HOSTS, RANK, CONTROL_PORT = "TERNGRAD_HOSTS", "TERNGRAD_RANK", "TERNGRAD_CONTROL_PORT"

_joined: list[Group] = []


@dataclasses.dataclass(frozen=True)
class _Place:
    """Which process this is, and where the others are."""

    source: str
    hosts: tuple[str, ...] = ()
    rank: int = 0
    control_port: int | None = None

    @property
    def control_address(self) -> str:
        """HOST:PORT at which the chief listens for the others."""
        host, _, port = self.hosts[0].rpartition(":")
        chosen = self.control_port or int(port) + CONTROL_PORT_ABOVE
        return f"{host}:{chosen}"


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
    place = _place(hosts, rank, control_port, os.environ)
    if len(place.hosts) < 2:
        return Group()
    if _joined:
        raise ValueError("join: this process has joined before; allowed is once")
    group = _met(place, timeout_secs)
    _joined.append(group)
    return group


def _place(
    hosts: Sequence[str] | None,
    rank: int | None,
    control_port: int | None,
    environment: Mapping[str, str],
) -> _Place:
    """Returns this process' place: from arguments, or else from what launched it.

    Raises:
      ValueError: they are wrong.
    """
    if hosts is not None:
        if rank is None:
            raise ValueError("join: hosts needs rank, the index of this process in it")
        return _checked(_Place("join", tuple(hosts), rank, control_port))
    if rank is not None:
        raise ValueError("join: rank needs hosts, which lists HOST:PORT of each process")
    if HOSTS in environment:
        given = environment[HOSTS].split(",")
        number = {name: environment.get(name, "") for name in (RANK, CONTROL_PORT)}
        for name, text in number.items():
            if not text.isdecimal():
                raise ValueError(f"{name} is {text!r}; allowed are whole numbers")
        return _checked(_Place(HOSTS, tuple(given), int(number[RANK]), int(number[CONTROL_PORT])))
    return _Place("alone")


def _checked(place: _Place) -> _Place:
    for host in place.hosts:
        try:
            split_address(host)
        except MembershipError as error:
            raise ValueError(f"{place.source}: {error}") from None
    if not place.hosts:
        raise ValueError(f"{place.source}: hosts must list HOST:PORT of each process")
    if len(set(place.hosts)) < len(place.hosts):
        raise ValueError(f"{place.source}: each HOST:PORT must be listed once: {place.hosts}")
    if not 0 <= place.rank < len(place.hosts):
        allowed = f"0 to {len(place.hosts) - 1}, an index of the hosts"
        raise ValueError(f"{place.source}: rank is {place.rank}; allowed are {allowed}")
    return place


def _met(place: _Place, timeout_secs: float) -> Group:
    """Meets the others at the chief's control port; exchanges over TensorFlow's collectives."""
    hosts, rank = place.hosts, place.rank
    collective.check_start()
    pulse = Pulse()
    peers = admission.join(hosts, rank, place.control_address, timeout_secs)
    doors = {i: host for i, host in enumerate(hosts) if i != rank}
    with contextlib.ExitStack() as stack:
        watched = watching(hosts, rank, peers, timeout_secs, pulse=pulse, doors=doors)
        membership = stack.enter_context(watched)
        connection = collective.start(hosts, rank, timeout_secs)
        kept = stack.pop_all()
    return Group(rank, len(hosts), connection, membership.agree, pulse, kept)
