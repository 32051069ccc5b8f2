"""Joins the processes of a program: flags become the arguments of `terngrad.join`.

TensorFlow is loaded only to join.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inception.flags.cluster import ClusterConfig
from inception.flags.table import RefusedError, refuse
from terngrad.cluster.managed.role import LAUNCHED, Role
from terngrad.cluster.membership import end_process
from terngrad.connect.certificates import Tls
from terngrad.library.join_config import JoinConfig, Naming

if TYPE_CHECKING:
    from terngrad.library.group import Group

_FLAGS = {  # by argument of `terngrad.join`, where the names differ
    "hosts": "worker_hosts",
    "min_size": "min_workers",
    "engine": "variable_update",
    "asynchronous.folder": "train_dir",
    "asynchronous.snapshot": "ps_snapshot",
    "asynchronous.snapshot_steps": "ps_snapshot_steps",
    **{f"tls.{part}": f"tls_{part}" for part in ("ca", "cert", "key", "deny")},
}
_NOT_SET = -1


class _FlagNaming(Naming):
    """Errors that name flags."""

    encryption = (
        "--tls_ca, --tls_cert and --tls_key, or --allow_insecure_network in a network where all "
        "are trusted"
    )

    def name(self, argument: str) -> str:
        """See base class."""
        return f"--{_FLAGS.get(argument, argument)}"

    def refuse(self, argument: str, value: object, why: str) -> ValueError | RefusedError:
        """See base class."""
        if not argument:
            return ValueError(why)
        return refuse(self.name(argument)[2:], _NOT_SET if value is None else value, why)


def join_config(cluster: ClusterConfig) -> JoinConfig:
    """Returns how this process joins the others."""
    files = cluster.tls_ca, cluster.tls_cert, cluster.tls_key, cluster.tls_deny
    value_of = lambda number: None if number == _NOT_SET else number
    config = JoinConfig(
        role=Role(
            source="flags",
            job_name=cluster.job_name,
            task_id=cluster.task_id,
            size=len(cluster.worker_hosts),
            worker_hosts=cluster.worker_hosts,
            ps_hosts=cluster.ps_hosts,
            control_port=value_of(cluster.control_port),
            variable_update=cluster.variable_update,
        ),
        timeout_secs=cluster.worker_timeout_secs,
        tls=Tls(*files) if cluster.tls_ca else None,
        allow_insecure_network=cluster.allow_insecure_network,
        num_replicas_to_aggregate=value_of(cluster.num_replicas_to_aggregate),
        elastic=cluster.elastic,
        min_size=cluster.min_workers,
        elastic_wait_secs=cluster.elastic_wait_secs,
        synchronous=cluster.cross_replica_sync,
        network_interface=cluster.network_interface,
        naming=_FlagNaming(),
        say=lambda line: print(line, flush=True),
        end=end_process,
    )
    return config.with_own_servers() if config.needs_own_servers else config


def join(cluster: ClusterConfig) -> Group:
    """Joins the other workers; see `engines.join` for errors."""
    from terngrad.library import engines

    if cluster.engine not in LAUNCHED:
        log_hosts(cluster)
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


def log_hosts(cluster: ClusterConfig) -> None:
    """Prints the hosts of the workers and parameter servers."""
    if cluster.ps_hosts:
        print(f"PS hosts are: {list(cluster.ps_hosts)}", flush=True)
    print(f"Worker hosts are: {list(cluster.worker_hosts)}", flush=True)
