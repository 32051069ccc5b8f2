"""Workers that a launcher started (mpirun, horovodrun), which also knows their indices."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

from inception.cluster.watch import watching
from inception.cluster.workers import Workers
from inception.flags.cluster import ClusterConfig
from inception.flags.table import refuse
from terngrad.cluster import launched
from terngrad.cluster.channel import Peer
from terngrad.cluster.pulse import Pulse
from terngrad.exchange import launchers
from terngrad.exchange.connection import Connection
from terngrad.exchange.two_shot import Transport


@contextlib.contextmanager
def joined_by_mpi(cluster: ClusterConfig) -> Iterator[Workers]:
    """See `join.joined`."""
    try:
        transport, gather = launchers.start_mpi()
    except ValueError as error:
        raise refuse("variable_update", "mpi", str(error)) from None
    rank = transport.rank
    with launchers.ending_at_once(f"worker {rank}"):
        hosts, peers = _meet(rank, gather, cluster)
        with watching(cluster, hosts, rank, peers, lambda: transport) as workers:
            yield workers


@contextlib.contextmanager
def joined_by_horovod(cluster: ClusterConfig) -> Iterator[Workers]:
    """See `join.joined`."""
    try:
        transport, gather = launchers.start_horovod(cluster.worker_timeout_secs)
    except ValueError as error:
        raise refuse("variable_update", "horovod", str(error)) from None
    ending = launchers.ending_at_once(f"worker {transport.rank}")
    with ending, contextlib.ExitStack() as stack:
        yield _meeting_late(cluster, transport, gather, stack)


def _meeting_late(
    cluster: ClusterConfig,
    transport: Transport,
    gather: launched.Gather,
    stack: contextlib.ExitStack,
) -> Workers:
    """Workers that meet when they connect, because Horovod talks through TensorFlow operations."""
    rank, pulse = transport.rank, Pulse()
    unsaid: dict[str, str] = {}
    at_loss: list[Callable[[], str]] = []
    met: list[Workers] = []

    def agree(facts: Mapping[str, str]) -> None:
        if met:
            met[0].agree(facts)
        else:
            unsaid.update(facts)

    def connect() -> Connection:
        hosts, peers = _meet(rank, gather, cluster)
        joining = watching(
            cluster, hosts, rank, peers, lambda: transport, pulse=pulse, at_loss=at_loss
        )
        met.append(stack.enter_context(joining))
        agree(unsaid)
        return transport

    size, split = transport.size, cluster.split_data
    return Workers(rank, size, split, connect, agree, pulse, at_loss=at_loss)


def _meet(
    rank: int, gather: launched.Gather, cluster: ClusterConfig
) -> tuple[list[str], dict[int, Peer]]:
    """Meets the workers that a launcher started; see `launched.join`."""
    hosts, peers = launched.join(rank, gather, cluster.worker_timeout_secs)
    if rank == 0:
        print(f"Worker hosts are: {hosts}", flush=True)
    return hosts, peers
