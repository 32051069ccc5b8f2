"""The engines that join processes: each returns the group."""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from terngrad.cluster import admission, launched
from terngrad.cluster.channel import MembershipError, name_of
from terngrad.cluster.managed.role import Role
from terngrad.cluster.membership import end_because_of_another, with_last_acts
from terngrad.cluster.pulse import Pulse
from terngrad.exchange import all_reduce, launchers
from terngrad.exchange.operation_errors import OperationError
from terngrad.exchange.parameter_server.exchange import ParameterServerConnection
from terngrad.exchange.parameter_server.membership import Ending, agree
from terngrad.exchange.parameter_server.worker.client import Client
from terngrad.exchange.two_shot import Transport
from terngrad.exchange.watching import watching
from terngrad.library.failures import ending_if_told, told_to_others
from terngrad.library.group import Group
from terngrad.library.roles import control_address, rules_of
from terngrad.service.members import Members
from terngrad.service.security import Tls

LAUNCHED = ("mpi", "horovod")  # engines whose launcher knows the processes
_LOOK_SECS = 0.1


class Meeting(NamedTuple):
    """What an engine needs to know; see `joining.join`."""

    role: Role
    timeout_secs: float
    tls: Tls | None = None
    secret: bytes = b""


def _by_collective(meeting: Meeting) -> Group:
    """Meets the others at the chief's control port."""
    role, timeout_secs, tls, secret = meeting
    hosts, rank, pulse, at_loss = role.worker_hosts, role.task_id, Pulse(), []
    with told_to_others(role, timeout_secs, tls, secret):
        try:
            transport = all_reduce.choose_transport(encrypts=tls is not None)
        except ValueError as error:
            raise ValueError(f"join: {error}") from None
    members, address = Members(tls) if tls else None, control_address(role)
    with ending_if_told(role):
        peers = admission.join(hosts, rank, address, timeout_secs, members, secret)
    token = admission.share_token(peers, rank, timeout_secs, secret)
    doors = {i: host for i, host in enumerate(hosts) if i != rank}
    with contextlib.ExitStack() as stack:
        watched = watching(
            hosts,
            rank,
            peers,
            timeout_secs,
            pulse=pulse,
            doors=doors,
            on_loss=end_because_of_another,
            at_loss=at_loss,
        )
        membership = stack.enter_context(watched)
        connection = all_reduce.connect(transport, hosts, rank, token, timeout_secs, members)
        stack.callback(connection.close)
        kept = stack.pop_all()
    same = lambda facts: membership.agree({all_reduce.VARIABLE: transport, **facts})
    return Group(rank, len(hosts), connection, same, pulse, kept, at_loss)


def _by_launcher(
    start: Callable[[float], tuple[Transport, launched.Gather]], meeting: Meeting
) -> Group:
    """Meets the processes that a launcher has connected."""
    try:
        transport, gather = start(meeting.timeout_secs)
    except ValueError as error:
        raise ValueError(f"join: engine {meeting.role.variable_update}: {error}") from None
    rank, pulse, at_loss = transport.rank, Pulse(), []
    with contextlib.ExitStack() as stack:
        stack.enter_context(launchers.ending_at_once(f"worker {rank}"))
        hosts, peers = launched.join(rank, gather, meeting.timeout_secs)
        watched = watching(hosts, rank, peers, meeting.timeout_secs, pulse=pulse, at_loss=at_loss)
        membership = stack.enter_context(watched)
        kept = stack.pop_all()
    return Group(rank, transport.size, transport, membership.agree, pulse, kept, at_loss)


def _by_parameter_servers(meeting: Meeting) -> Group:
    """Meets the others at the parameter servers."""
    role, timeout_secs, tls, secret = meeting
    hosts, rank, pulse, at_loss = role.worker_hosts, role.task_id, Pulse(), []
    rules = str(rules_of(role, timeout_secs))
    with ending_if_told(role):
        client = Client(role.ps_hosts, hosts, rank, timeout_secs, tls, pulse, rules, secret=secret)
    name = name_of(rank, hosts)
    end = lambda message: end_because_of_another(with_last_acts(message, at_loss))
    ending = Ending(client, name, pulse, timeout_secs, end)
    with contextlib.ExitStack() as stack:
        stack.enter_context(ending.at_the_end_of_the_block())
        stack.enter_context(_naming_losses(client, name, timeout_secs, at_loss))
        connection = ParameterServerConnection(client)
        kept = stack.pop_all()
    rounds = itertools.count()

    def same(facts: Mapping[str, str]) -> None:
        agree(client, facts, hosts, next(rounds))

    return Group(rank, len(hosts), connection, same, pulse, kept, at_loss)


@contextlib.contextmanager
def _naming_losses(
    client: Client, name: str, timeout_secs: float, at_loss: Sequence[Callable[[], str]]
) -> Iterator[None]:
    """Turns the error of an abandoned step into one that names the lost process."""
    try:
        yield
    except OperationError as error:
        if at_loss:
            said = with_last_acts(f"{name}: a step was abandoned", at_loss)
            print(f"{said}.", file=sys.stderr, flush=True)
        deadline = time.monotonic() + 2 * timeout_secs
        while not client.failure and time.monotonic() < deadline:
            time.sleep(_LOOK_SECS)
        why = client.failure or "a worker or a parameter server was away for a while"
        raise MembershipError(f"a step was abandoned: {why}") from error


ENGINES: Mapping[str, Callable[[Meeting], Group]] = {
    "collective": _by_collective,
    "parameter_server": _by_parameter_servers,
    "mpi": lambda meeting: _by_launcher(lambda secs: launchers.start_mpi(), meeting),
    "horovod": lambda meeting: _by_launcher(launchers.start_horovod, meeting),
}
