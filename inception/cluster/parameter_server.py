"""Workers that exchange through parameter servers, all of them in step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from inception.cluster.network import security, tell_hosts
from inception.cluster.workers import Workers
from inception.flags.cluster import ClusterConfig
from terngrad.cluster import run_secret
from terngrad.cluster.channel import name_of
from terngrad.cluster.pulse import Pulse
from terngrad.coordination.states import Rules
from terngrad.exchange.parameter_server.exchange import ParameterServerConnection
from terngrad.exchange.parameter_server.membership import Ending, agree
from terngrad.exchange.parameter_server.worker.client import Client


@contextlib.contextmanager
def joined(cluster: ClusterConfig) -> Iterator[Workers]:
    """See `join.joined`."""
    hosts, rank = cluster.worker_hosts, cluster.task_id
    tell_hosts(cluster)
    pulse, tls = Pulse(), security(cluster)
    rules = Rules(cluster.aggregated, cluster.elastic, cluster.worker_timeout_secs)
    client = Client(
        cluster.ps_hosts,
        hosts,
        rank,
        rules.timeout_secs,
        tls,
        pulse,
        str(rules),
        elastic=rules.elastic,
        secret=run_secret.shared(),
    )
    ending = Ending(client, name_of(rank, hosts), pulse, rules.timeout_secs)

    with ending.at_the_end_of_the_block():
        if rank == 0:
            print(
                f"SyncReplicas enabled: replicas_to_aggregate={cluster.aggregated}; "
                f"total_num_replicas={len(hosts)}",
                flush=True,
            )
        connection = ParameterServerConnection(client)
        yield Workers(
            rank,
            len(hosts),
            cluster.split_data,
            lambda: connection,
            lambda facts: agree(client, facts, hosts),
            pulse,
            cluster.aggregated,
        )
