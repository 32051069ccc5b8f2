"""Workers that meet at the chief's control port and exchange without parameter servers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from inception.cluster.watch import watching
from inception.cluster.workers import Workers
from inception.flags.cluster import ClusterConfig
from inception.flags.table import refuse
from terngrad.cluster import admission
from terngrad.cluster.channel import PortError
from terngrad.exchange import all_reduce
from terngrad.exchange.connection import Connection


@contextlib.contextmanager
def joined(cluster: ClusterConfig) -> Iterator[Workers]:
    """See `join.joined`."""
    hosts, rank, timeout_secs = cluster.worker_hosts, cluster.task_id, cluster.worker_timeout_secs
    transport = all_reduce.choose_transport()
    _check_network(cluster)
    print(f"Worker hosts are: {list(hosts)}", flush=True)
    try:
        peers = admission.join(hosts, rank, cluster.control_address, timeout_secs)
    except PortError as error:
        raise refuse("control_port", cluster.control_port, str(error)) from None
    token = admission.share_token(peers, rank, timeout_secs)
    with contextlib.ExitStack() as stack:

        def connect() -> Connection:
            try:
                connection = all_reduce.connect(transport, hosts, rank, token, timeout_secs)
            except PortError as error:
                why = f"must name free ports of the workers: {error}"
                raise refuse("worker_hosts", ",".join(hosts), why) from None
            stack.callback(connection.close)
            return connection

        doors = {i: host for i, host in enumerate(hosts) if i != rank}
        facts = {all_reduce.VARIABLE: transport}
        with watching(cluster, hosts, rank, peers, connect, doors=doors, facts=facts) as workers:
            yield workers


def _check_network(cluster: ClusterConfig) -> None:
    """Refuses to send gradients between machines unless the user trusts the network."""
    host = all_reduce.first_remote(cluster.worker_hosts)
    if host and not cluster.allow_insecure_network:
        why = (
            f"{host} is not on this machine, and all-reduce is not encrypted: needs "
            "--allow_insecure_network in a network where all are trusted"
        )
        raise refuse("worker_hosts", ",".join(cluster.worker_hosts), why)
