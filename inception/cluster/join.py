"""How the processes of a distributed training meet."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from inception.flags.cluster import ClusterConfig
from inception.flags.table import refuse
from terngrad.cluster import admission, launched
from terngrad.cluster.channel import FinishedError, PortError, name_of
from terngrad.cluster.membership import Membership, compare, end_process, reason_of
from terngrad.cluster.pulse import HOPELESS, Pulse

if TYPE_CHECKING:
    from terngrad.cluster.channel import Peer
    from terngrad.exchange.connection import Connection
    from terngrad.exchange.horovod import HorovodTransport


_LOOK_SECS = 1.0


@dataclasses.dataclass(frozen=True)
class Workers:
    """The processes of a training, as one of them sees them.

    Attributes:
      rank: index of this one; 0 is the chief, which writes checkpoints and summaries.
      size: number of them.
      split_data: each reads its share of the records.
      connect: returns the connection between them, None if there is but one; called once, after
        TensorFlow's threads are set and before it computes anything.
      agree: compares facts with the others; ValueError names a difference. It waits for them;
        InterruptionError: one of them came or went.
      pulse: how far this one is, for the others to see.
      aggregated: of how many of them the gradients make a step; 0 = of all.
    """

    rank: int = 0
    size: int = 1
    split_data: bool = True
    connect: Callable[[], Connection | None] = lambda: None
    agree: Callable[[Mapping[str, str]], None] = lambda facts: None
    pulse: Pulse = dataclasses.field(default_factory=Pulse)
    aggregated: int = 0

    @property
    def batches_per_step(self) -> int:
        """Of how many batches, one of a worker each, a step is: learning rates follow from it."""
        return self.aggregated or self.size

    @property
    def is_chief(self) -> bool:
        """Whether this one writes checkpoints and summaries."""
        return self.rank == 0

    @property
    def label(self) -> int | None:
        """What the lines of a step begin with; None for a process alone."""
        return self.rank if self.size > 1 else None


ALONE = Workers()


def joined(cluster: ClusterConfig) -> contextlib.AbstractContextManager[Workers]:
    """Meets the other workers until the end of the block.

    Raises:
      ValueError: names a worker that does not come or is lost, or what is not installed.
    """
    join = {
        "collective": _joined_by_sockets,
        "mpi": _joined_by_mpi,
        "horovod": _joined_by_horovod,
        "parameter_server": _joined_by_parameter_servers,
    }
    return join[cluster.engine](cluster)


@contextlib.contextmanager
def _joined_by_parameter_servers(cluster: ClusterConfig) -> Iterator[Workers]:
    from inception.cluster.network import security, tell_hosts
    from terngrad.exchange.parameter_server.coordination.coordinator import Rules
    from terngrad.exchange.parameter_server.exchange import ParameterServerConnection
    from terngrad.exchange.parameter_server.worker.client import Client

    hosts, rank = cluster.worker_hosts, cluster.task_id
    tell_hosts(cluster)
    pulse, tls = Pulse(), security(cluster)
    rules = Rules(cluster.aggregated, cluster.elastic, cluster.worker_timeout_secs)
    timeout_secs = rules.timeout_secs
    client = Client(cluster.ps_hosts, hosts, rank, timeout_secs, tls, pulse, str(rules))
    connection = ParameterServerConnection(client)

    def end(why: str, said: str = "") -> None:
        client.close(is_done=True, why=why)
        end_process(f"{name_of(rank, hosts)} ends: {said or why}")

    def end_soon(why: str) -> None:
        """Lets the main thread save what there is, unless it hangs."""
        threading.Thread(target=end_unless_it_moves, args=(why,), daemon=True).start()

    def end_unless_it_moves(why: str) -> None:
        began = stepping_since = time.monotonic()
        now = began
        while now - stepping_since < timeout_secs and now - began < HOPELESS * timeout_secs:
            time.sleep(min(_LOOK_SECS, timeout_secs / 4))
            now = time.monotonic()
            if pulse.batches is None:  # it saves, perhaps, which may take as long as it takes
                stepping_since = now
        end(why)

    def agree(facts: Mapping[str, str]) -> None:
        given = client.meeting.gather(f"facts:{min(facts)}", json.dumps(facts).encode())
        facts_of = {worker: json.loads(text) for worker, text in given.items()}
        compare({**facts_of, rank: dict(facts)}, hosts)  # who comes late has not given its own

    why = ""
    try:
        client.watch(end_soon)
        if rank == 0:
            print(
                f"SyncReplicas enabled: replicas_to_aggregate={cluster.aggregated}; "
                f"total_num_replicas={len(hosts)}",
                flush=True,
            )
        yield Workers(
            rank,
            len(hosts),
            cluster.split_data,
            lambda: connection,
            agree,
            pulse,
            cluster.aggregated,
        )
        client.meeting.leave()
    except SystemExit:  # all workers were stopped, and have saved
        client.meeting.leave()
        raise
    except FinishedError as error:
        client.meeting.leave()
        print(f"{name_of(rank, hosts)}: {error}.", flush=True)
        sys.exit(0)
    except BaseException as error:
        why = reason_of(error)
        if client.failure:
            end(client.failure, said=why)
        client.meeting.fail(why)
        raise
    finally:
        client.close(is_done=True, why=why)


@contextlib.contextmanager
def _joined_by_sockets(cluster: ClusterConfig) -> Iterator[Workers]:
    from terngrad.exchange import collective  # it loads TensorFlow: the flags were checked by now

    hosts, rank, timeout_secs = cluster.worker_hosts, cluster.task_id, cluster.worker_timeout_secs
    print(f"Worker hosts are: {list(hosts)}", flush=True)

    def connect() -> Connection:
        try:
            return collective.start(hosts, rank, timeout_secs)
        except ValueError as error:
            why = f"must name free ports of the workers: {error}"
            raise refuse("worker_hosts", ",".join(hosts), why) from None

    try:
        peers = admission.join(hosts, rank, cluster.control_address, timeout_secs)
    except PortError as error:
        raise refuse("control_port", cluster.control_port, str(error)) from None
    doors = {i: host for i, host in enumerate(hosts) if i != rank}
    with _taking_part(cluster, hosts, rank, peers, connect, doors=doors) as workers:
        yield workers


@contextlib.contextmanager
def _joined_by_mpi(cluster: ClusterConfig) -> Iterator[Workers]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that of foreign launchers, which are refused below
            from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # there is no mpi4py, or it finds no library
        why = f"needs mpi4py and an MPI library, pip install '.[mpi]' ({error})"
        raise refuse("variable_update", "mpi", " ".join(why.split())) from None
    from terngrad.exchange.mpi import MpiTransport

    world = MPI.COMM_WORLD
    if why := launched.misfit(world.size, os.environ):
        raise refuse("variable_update", "mpi", f"must be started by mpirun of mpi4py's MPI: {why}")
    connect = lambda: MpiTransport(world)
    with _ending_at_once(f"worker {world.rank}"):
        hosts, peers = _meet(world.rank, world.allgather, cluster)
        with _taking_part(cluster, hosts, world.rank, peers, connect) as workers:
            yield workers


@contextlib.contextmanager
def _joined_by_horovod(cluster: ClusterConfig) -> Iterator[Workers]:
    try:
        from terngrad.exchange import horovod
    except ImportError as error:
        why = f"needs Horovod, bash scripts/install_horovod.sh ({error})"
        raise refuse("variable_update", "horovod", why) from None
    try:
        transport = horovod.start(cluster.worker_timeout_secs)
    except ValueError as error:
        raise refuse("variable_update", "horovod", str(error)) from None
    with _ending_at_once(f"worker {transport.rank}"), contextlib.ExitStack() as stack:
        yield _meeting_late(cluster, transport, stack)


def _meeting_late(
    cluster: ClusterConfig, transport: HorovodTransport, stack: contextlib.ExitStack
) -> Workers:
    """Workers who meet when they connect, since Horovod talks with TensorFlow's operations."""
    rank, pulse = transport.rank, Pulse()
    unsaid: dict[str, str] = {}
    met: list[Workers] = []

    def agree(facts: Mapping[str, str]) -> None:
        if met:
            met[0].agree(facts)
        else:
            unsaid.update(facts)

    def connect() -> Connection:
        hosts, peers = _meet(rank, transport.gather_objects, cluster)
        joining = _taking_part(cluster, hosts, rank, peers, lambda: transport, pulse=pulse)
        met.append(stack.enter_context(joining))
        agree(unsaid)
        return transport

    return Workers(rank, transport.size, cluster.split_data, connect, agree, pulse)


def _meet(
    rank: int, gather: launched.Gather, cluster: ClusterConfig
) -> tuple[list[str], dict[int, Peer]]:
    """Meets the workers that a launcher started; see `launched.join`."""
    hosts, peers = launched.join(rank, gather, cluster.worker_timeout_secs)
    if rank == 0:
        print(f"Worker hosts are: {hosts}", flush=True)
    return hosts, peers


@contextlib.contextmanager
def _ending_at_once(name: str) -> Iterator[None]:
    """Ends this process where the block fails, and the launcher then the others.

    An orderly end would wait for the others, who wait for this one.
    """
    try:
        yield
    except SystemExit:  # all processes end so, at the same step
        raise
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, ValueError | OSError):
            traceback.print_exc()
        end_process(f"{name} ({socket.gethostname()}) ends: {reason_of(error)}")


@contextlib.contextmanager
def _taking_part(
    cluster: ClusterConfig,
    hosts: Sequence[str],
    rank: int,
    peers: Mapping[int, Peer],
    connect: Callable[[], Connection],
    *,
    pulse: Pulse | None = None,
    doors: Mapping[int, str] = MappingProxyType({}),
) -> Iterator[Workers]:
    """Watches the other workers until the end of the block; for `doors` see `Membership`."""
    from terngrad.exchange.operation_errors import OperationError, reason

    pulse, timeout_secs = pulse or Pulse(), cluster.worker_timeout_secs
    with Membership(hosts, rank, peers, timeout_secs, pulse=pulse, doors=doors) as membership:
        try:
            yield Workers(rank, len(hosts), cluster.split_data, connect, membership.agree, pulse)
        except OperationError as error:
            membership.await_loss()  # whoever is lost has a name, which TensorFlow does not tell
            text = f"an operation between the workers failed: {reason(error, hosts)}"
            raise ValueError(text) from error


def fingerprint(values: Sequence[np.ndarray]) -> str:
    """Differs between lists of arrays that are not equal bit for bit."""
    digest = hashlib.sha256()
    for value in values:
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()[:16]
