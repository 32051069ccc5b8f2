"""Tells the other processes why this one ends before it has joined them. It loads no TensorFlow."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from inception.cluster import network
from inception.flags.cluster import LAUNCHED, ClusterConfig
from terngrad.cluster import admission, run_secret
from terngrad.cluster.channel import MembershipError, name_of
from terngrad.cluster.membership import reason_of
from terngrad.service.members import Members

_STOP_SECS = 2.0  # for a process that was asked to end


@contextlib.contextmanager
def told_to_others(cluster: ClusterConfig) -> Iterator[None]:
    """Tells the others why the block fails; it ends before this process joins them."""
    try:
        yield
    except MembershipError:  # it comes from the others
        raise
    except BaseException as error:
        tell(cluster, error)
        raise


def tell(cluster: ClusterConfig, error: BaseException) -> None:
    """Tells the others why this process ends; waits for those that start later."""
    hosts, rank, engine = cluster.worker_hosts, cluster.task_id, cluster.engine
    is_missed = cluster.cross_replica_sync or rank == 0
    is_worker = cluster.job_name == "worker" and engine not in LAUNCHED
    if not (is_worker and is_missed and len(hosts) > 1) or isinstance(error, SystemExit):
        return
    try:
        tls, secret = network.security(cluster), run_secret.shared()
        members = Members(tls) if tls else None
    except (ValueError, OSError):  # then it must not listen, or nobody would believe it
        return
    why, secs = reason_of(error), cluster.worker_timeout_secs
    secs = secs if isinstance(error, Exception) else min(secs, _STOP_SECS)
    with contextlib.suppress(OSError):
        told = f"tells the others first, for at most {secs:g} s"
        print(f"{name_of(rank, hosts)} {told}: {why}", flush=True)
    if engine == "collective":
        address = cluster.control_address
        admission.tell_failure(hosts, rank, address, why, secs, members, secret)
    elif cluster.cross_replica_sync:
        # Only parameter servers need the compiled service.proto.
        from terngrad.coordination.states import Rules
        from terngrad.exchange.parameter_server import early_failure

        rules = Rules(cluster.aggregated, cluster.elastic, cluster.worker_timeout_secs)
        early_failure.tell(cluster.ps_hosts, hosts, rank, why, rules, secs, tls, secret)
    else:
        from terngrad.asynchronous import early_failure

        early_failure.tell(cluster.ps_hosts, hosts, why, secs, tls, secret)
