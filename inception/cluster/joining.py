"""How a worker of a program joins the others, and what it says of them."""

from inception.cluster.join_config import join_config
from inception.flags.cluster import ClusterConfig
from terngrad.cluster.managed.role import LAUNCHED
from terngrad.library import engines
from terngrad.library.group import Group


def join(cluster: ClusterConfig) -> Group:
    """Joins the other workers; see `engines.join` for errors."""
    if cluster.engine not in LAUNCHED:
        tell_hosts(cluster)
    group = engines.join(join_config(cluster))
    if cluster.engine in LAUNCHED and group.is_chief:
        print(f"Worker hosts are: {group.hosts}", flush=True)
    if cluster.ps_hosts and group.is_chief:
        print(
            f"SyncReplicas enabled: replicas_to_aggregate={group.batches_per_step}; "
            f"total_num_replicas={group.size}",
            flush=True,
        )
    return group


def tell_hosts(cluster: ClusterConfig) -> None:
    """Prints who takes part."""
    if cluster.ps_hosts:
        print(f"PS hosts are: {list(cluster.ps_hosts)}", flush=True)
    print(f"Worker hosts are: {list(cluster.worker_hosts)}", flush=True)
