"""Workers that meet at the chief's control port and exchange over TensorFlow's collectives."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from inception.cluster.watch import watching
from inception.cluster.workers import Workers
from inception.flags.cluster import ClusterConfig
from inception.flags.table import refuse
from terngrad.cluster import admission
from terngrad.cluster.channel import PortError
from terngrad.exchange import collective
from terngrad.exchange.connection import Connection


@contextlib.contextmanager
def joined(cluster: ClusterConfig) -> Iterator[Workers]:
    """See `join.joined`."""
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
    with watching(cluster, hosts, rank, peers, connect, doors=doors) as workers:
        yield workers
