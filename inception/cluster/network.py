"""How processes are reached: at which hosts, with which certificates, and from where."""

from collections.abc import Callable

from inception.flags.cluster import ClusterConfig
from inception.flags.table import refuse
from terngrad.cluster.addresses import is_loopback
from terngrad.cluster.channel import PortError, split_address
from terngrad.service import certificates, listening
from terngrad.service.security import Tls


def tell_hosts(cluster: ClusterConfig) -> None:
    """Prints who takes part."""
    print(f"PS hosts are: {list(cluster.ps_hosts)}", flush=True)
    print(f"Worker hosts are: {list(cluster.worker_hosts)}", flush=True)


def security(cluster: ClusterConfig) -> Tls | None:
    """Certificates, if flags name them.

    Raises:
      ValueError: there are none, and a ps or, in an all-reduce, a worker is not on this machine;
        or names the flag whose file cannot be read or holds something else.
    """
    if cluster.tls_ca:
        _check_certificates(cluster)
        return Tls(cluster.tls_ca, cluster.tls_cert, cluster.tls_key, cluster.tls_deny)
    name = "ps_hosts" if cluster.ps_hosts else "worker_hosts"
    hosts = getattr(cluster, name)
    is_alone = not cluster.ps_hosts and len(hosts) == 1
    if not cluster.allow_insecure_network and not is_alone:
        for host in hosts:
            if not is_loopback(split_address(host)[0]):
                why = (
                    f"{host} is not on this machine: needs --tls_ca, --tls_cert and --tls_key, or "
                    "--allow_insecure_network in a network where all are trusted"
                )
                raise refuse(name, ",".join(hosts), why)
    return None


def _check_certificates(cluster: ClusterConfig) -> None:
    tls = Tls(cluster.tls_ca, cluster.tls_cert, cluster.tls_key, cluster.tls_deny)
    try:
        certificates.check(tls)
    except certificates.CertificateError as error:
        raise refuse(f"tls_{error.field}", error.path, error.why) from None


def listen(start: Callable[[str], int], cluster: ClusterConfig, tls: Tls | None) -> str:
    """Lets a ps listen; returns, in words, to whom.

    Args:
      start: listens at "host:port", see `Server.start`.
      cluster: names this ps and its host.
      tls: its certificates, see `security`.

    Raises:
      ValueError: its port is taken, or its host another machine.
    """
    host = cluster.ps_hosts[cluster.task_id]
    try:
        return listening.listen(start, host, tls, is_open=cluster.allow_insecure_network)
    except PortError as error:
        raise refuse("ps_hosts", cluster.ps_hosts, str(error)) from None
