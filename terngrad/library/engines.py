"""The engines that join workers: each returns the group."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from terngrad.cluster import admission, launched
from terngrad.cluster.addresses import name_of
from terngrad.cluster.errors import MembershipError, PortError
from terngrad.cluster.membership import compare, with_final_actions
from terngrad.cluster.progress import ProcessProgress
from terngrad.connect import streams
from terngrad.connect.config import ConnectConfig
from terngrad.exchange import launchers, sockets
from terngrad.exchange.operation_errors import OperationError, watching
from terngrad.exchange.parameter_server.elastic_mesh import ElasticMesh
from terngrad.exchange.parameter_server.exchange import ParameterServerConnection
from terngrad.exchange.parameter_server.worker.client import Client
from terngrad.exchange.parameter_server.worker_exit import WorkerExit
from terngrad.exchange.two_shot import Transport
from terngrad.library import own_server
from terngrad.library.failures import reporting_failure
from terngrad.library.group import Group
from terngrad.library.join_config import JoinConfig
from terngrad.ops import library
from terngrad.service.messages import longest_value

_POLL_SECS = 0.1
_VALUES_OF_CONFIGURATION = 32  # as long as they may be; most are much shorter


def join(config: JoinConfig) -> Group:
    """Joins the other workers.

    Raises:
      ValueError: something in the configuration is wrong.
      MembershipError: names the processes that did not join or cannot be reached.
    """
    streams.raise_open_files_limit()  # all workers have sockets to each other, or its own server
    return ENGINES[config.role.engine](config) if config.synchronous else _asynchronously(config)


def _asynchronously(config: JoinConfig) -> Group:
    """Returns the group of a worker that does not wait for the others; does not connect yet."""
    with reporting_failure(config):
        config.check()
    config.log_interface()
    hosts, rank = config.role.worker_hosts, config.role.task_id
    group = Group(rank, len(hosts), hosts=hosts, aggregated=1)
    group.asynchronous = config
    return group


def _by_sockets(config: JoinConfig) -> Group:
    """Joins the others at the chief's control port."""
    role, naming, progress, at_loss = config.role, config.naming, ProcessProgress(), []
    hosts, rank = role.worker_hosts, role.task_id
    with reporting_failure(config):
        config.check()
        try:
            sockets.check_start()
        except ValueError as error:
            raise naming.refuse("", None, str(error)) from None
        connect, address = config.connect, config.control_address
    config.log_interface()
    try:
        peers = admission.join(connect, address)
    except PortError as error:
        raise naming.refuse("control_port", role.control_port, str(error)) from None
    token = admission.share_token(connect, peers)
    addresses = {i: host for i, host in enumerate(hosts) if i != rank}
    with contextlib.ExitStack() as stack:
        watched = watching(
            connect,
            peers,
            progress=progress,
            addresses=addresses,
            on_loss=config.end,
            at_loss=at_loss,
        )
        membership = stack.enter_context(watched)
        try:
            connection = sockets.start(connect, token)
        except PortError as error:
            why = f"must name free ports of the workers: {error}"
            raise naming.refuse("hosts", hosts, why) from None
        stack.callback(connection.close)
        kept = stack.pop_all()
    same = lambda configuration, what: membership.agree(configuration)
    return Group(rank, len(hosts), connection, same, progress, kept, at_loss, hosts=hosts)


def _by_launcher(
    start: Callable[[float], tuple[Transport, launched.Gather]], config: JoinConfig
) -> Group:
    """Joins the processes that a launcher has connected."""
    config.check()
    try:
        transport, gather = start(config.timeout_secs)
    except ValueError as error:
        raise config.naming.refuse("engine", config.role.engine, str(error)) from None
    rank, progress, at_loss = transport.rank, ProcessProgress(), []
    with contextlib.ExitStack() as stack:
        stack.enter_context(launchers.ending_at_once(f"worker {rank}"))
        hosts, peers = launched.join(rank, gather, config.timeout_secs, config.interface)
        if config.interface:
            config.say(_use_of_interface(name_of(rank, hosts), config))
        connect = ConnectConfig(hosts, rank, timeout_secs=config.timeout_secs)
        watched = watching(connect, peers, progress=progress, at_loss=at_loss)
        membership = stack.enter_context(watched)
        kept = stack.pop_all()
    same = lambda configuration, what: membership.agree(configuration)
    return Group(rank, transport.size, transport, same, progress, kept, at_loss, hosts=hosts)


def _use_of_interface(name: str, config: JoinConfig) -> str:
    """Returns what a network interface is for where a launcher connects the processes."""
    addresses, interface = ", ".join(config.interface.addresses), config.interface.name
    launcher = {"mpi": "mpirun", "horovod": "horovodrun"}[config.role.engine]
    return (
        f"{name} tells workers on other machines that it lives, over {interface} ({addresses}); "
        f"options of {launcher} choose the network of gradients."
    )


def _by_parameter_servers(config: JoinConfig) -> Group:
    """Joins the others at the parameter servers."""
    config.check()
    config.log_interface()
    if config.has_own_servers:
        config = dataclasses.replace(config, lacks_kernels=_lacks_kernels())
    connect, rules, progress, at_loss = config.connect, config.rules, ProcessProgress(), []
    hosts, name, timeout_secs = connect.worker_hosts, connect.name, config.timeout_secs
    end = lambda message: config.end(with_final_actions(message, at_loss))
    with contextlib.ExitStack() as stack:
        if config.has_own_servers:
            with reporting_failure(config):
                stack.enter_context(own_server.started(config))
        moves = rules.coordinator_moves
        client = Client(
            connect,
            progress,
            str(rules),
            elastic=rules.elastic,
            coordinator_moves=moves,
            servers_add=not _has_mesh(config),
        )
        leaving = WorkerExit(client, name, progress, timeout_secs, end)
        stack.enter_context(leaving.at_the_end_of_the_block())
        stack.enter_context(_naming_losses(client, name, timeout_secs, at_loss))
        if _has_mesh(config):
            connection = ElasticMesh(client, connect)
        else:
            owners_change = rules.elastic and _has_all_members(config)
            connection = ParameterServerConnection(client, owners_change=owners_change)
        stack.callback(connection.close)
        kept = stack.pop_all()
    rounds, is_elastic = itertools.count(), config.is_elastic

    def same(configuration: Mapping[str, str], what: str) -> None:
        is_counted = what and not is_elastic  # a late worker has not counted earlier rounds
        _agree(client, configuration, hosts, next(rounds) if is_counted else None, what)

    return Group(
        connect.rank,
        len(hosts),
        connection,
        same,
        progress,
        kept,
        at_loss,
        hosts=hosts,
        aggregated=config.num_replicas_to_aggregate,
        is_elastic=is_elastic,
        may_leave=moves,
    )


def _agree(
    client: Client,
    configuration: Mapping[str, str],
    hosts: Sequence[str],
    round_: int | None = None,
    what: str = "",
) -> None:
    """Compares a configuration with those of the other workers; see `Membership.agree`.

    Args:
      client: connection to the ps.
      configuration: what must be equal.
      hosts: those of all workers.
      round_: number of this call, the same on all workers; None = this configuration is compared
        once in each view.
      what: name of the configuration in that view; "" = the first of its own keys.
    """
    of_view = f"configuration:{what or min(configuration)}"
    name = of_view if round_ is None else "configuration"
    longest, own = longest_value(client.size), dict(configuration)
    if len(json.dumps(own)) > longest:
        most = longest // _VALUES_OF_CONFIGURATION
        own = {key: _shortened(value, most) for key, value in own.items()}
    given = client.coordination.gather(name, json.dumps(own).encode(), round_)
    configuration_of = {worker: json.loads(text) for worker, text in given.items()}
    # A late worker has not given its own.
    compare({**configuration_of, client.rank: own}, hosts)


def _shortened(value: str, most: int) -> str:
    """Returns a text, or the beginning and a digest of one that is too long for ps 0 to pass on."""
    if len(value) <= most:
        return value
    return f"{value[: most // 2]}... (SHA-256 {hashlib.sha256(value.encode()).hexdigest()[:16]})"


def _has_mesh(config: JoinConfig) -> bool:
    """Whether workers exchange gradients by a mesh: where all members of a view make its steps."""
    return config.has_own_servers and _has_all_members(config) and not config.lacks_kernels


def _has_all_members(config: JoinConfig) -> bool:
    """Whether all members of a view make its steps."""
    return config.aggregated == len(config.role.worker_hosts)


def _lacks_kernels() -> bool:
    """Whether this worker lacks native kernels: then none may use a mesh, so they compare this."""
    try:
        library.load()
    except library.UnavailableError:
        return True
    return False


@contextlib.contextmanager
def _naming_losses(
    client: Client, name: str, timeout_secs: float, at_loss: Sequence[Callable[[], str]]
) -> Iterator[None]:
    """Turns the error of an abandoned step into one that names the lost process."""
    try:
        yield
    except OperationError as error:
        if at_loss:
            said = with_final_actions(f"{name}: a step was abandoned", at_loss)
            print(f"{said}.", file=sys.stderr, flush=True)
        deadline = time.monotonic() + 2 * timeout_secs
        while not client.failure and time.monotonic() < deadline:
            time.sleep(_POLL_SECS)
        why = client.failure or "a worker or a parameter server was away for a while"
        raise MembershipError(f"a step was abandoned: {why}") from error


ENGINES: Mapping[str, Callable[[JoinConfig], Group]] = {
    "collective": _by_sockets,
    "parameter_server": _by_parameter_servers,
    "mpi": lambda config: _by_launcher(lambda secs: launchers.start_mpi(), config),
    "horovod": lambda config: _by_launcher(launchers.start_horovod, config),
}
