"""Workers that meet at the chief's control port and exchange without parameter servers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from inception.cluster import failures
from inception.cluster.network import security
from inception.cluster.watch import watching
from inception.cluster.workers import Workers
from inception.flags.cluster import ClusterConfig
from inception.flags.table import refuse
from terngrad.cluster import admission, run_secret
from terngrad.cluster.channel import PortError
from terngrad.exchange import all_reduce
from terngrad.exchange.connection import Connection
from terngrad.service.members import Members


@contextlib.contextmanager
def joined(cluster: ClusterConfig) -> Iterator[Workers]:
    """See `join.joined`."""
    hosts, rank, timeout_secs = cluster.worker_hosts, cluster.task_id, cluster.worker_timeout_secs
    with failures.told_to_others(cluster):
        tls = security(cluster)
        transport = all_reduce.choose_transport(encrypts=tls is not None and len(hosts) > 1)
        members, secret = Members(tls) if tls else None, run_secret.shared()
    print(f"Worker hosts are: {list(hosts)}", flush=True)
    try:
        peers = admission.join(hosts, rank, cluster.control_address, timeout_secs, members, secret)
    except PortError as error:
        raise refuse("control_port", cluster.control_port, str(error)) from None
    token = admission.share_token(peers, rank, timeout_secs, secret)
    with contextlib.ExitStack() as stack:

        def connect() -> Connection:
            try:
                connection = all_reduce.connect(
                    transport, hosts, rank, token, timeout_secs, members
                )
            except PortError as error:
                why = f"must name free ports of the workers: {error}"
                raise refuse("worker_hosts", ",".join(hosts), why) from None
            stack.callback(connection.close)
            return connection

        doors = {i: host for i, host in enumerate(hosts) if i != rank}
        facts = {all_reduce.VARIABLE: transport}
        with watching(cluster, hosts, rank, peers, connect, doors=doors, facts=facts) as workers:
            yield workers
