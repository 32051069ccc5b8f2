"""Workers that a launcher started (mpirun, horovodrun), which also knows their indices."""

from __future__ import annotations

import contextlib
import os
import socket
import traceback
import warnings
from collections.abc import Iterator, Mapping

from inception.cluster.watch import watching
from inception.cluster.workers import Workers
from inception.flags.cluster import ClusterConfig
from inception.flags.table import refuse
from terngrad.cluster import launched
from terngrad.cluster.channel import Peer
from terngrad.cluster.membership import end_process, reason_of
from terngrad.cluster.pulse import Pulse
from terngrad.exchange.connection import Connection
from terngrad.exchange.two_shot import Transport


@contextlib.contextmanager
def joined_by_mpi(cluster: ClusterConfig) -> Iterator[Workers]:
    """See `join.joined`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about foreign launchers, which are refused below
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
        with watching(cluster, hosts, world.rank, peers, connect) as workers:
            yield workers


@contextlib.contextmanager
def joined_by_horovod(cluster: ClusterConfig) -> Iterator[Workers]:
    """See `join.joined`."""
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
        yield _meeting_late(cluster, transport, transport.gather_objects, stack)


def _meeting_late(
    cluster: ClusterConfig,
    transport: Transport,
    gather: launched.Gather,
    stack: contextlib.ExitStack,
) -> Workers:
    """Workers that meet when they connect, because Horovod talks through TensorFlow operations."""
    rank, pulse = transport.rank, Pulse()
    unsaid: dict[str, str] = {}
    met: list[Workers] = []

    def agree(facts: Mapping[str, str]) -> None:
        if met:
            met[0].agree(facts)
        else:
            unsaid.update(facts)

    def connect() -> Connection:
        hosts, peers = _meet(rank, gather, cluster)
        joining = watching(cluster, hosts, rank, peers, lambda: transport, pulse=pulse)
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
    """Ends this process if the block fails; the launcher then ends the others.

    An orderly end would wait for the others, which wait for this one.
    """
    try:
        yield
    except SystemExit:  # all processes end at the same step
        raise
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, ValueError | OSError):
            traceback.print_exc()
        end_process(f"{name} ({socket.gethostname()}) ends: {reason_of(error)}")
