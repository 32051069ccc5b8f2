"""How the ps are reached: at which hosts, with which certificates, and from where."""

import contextlib
import ssl
from collections.abc import Callable, Sequence

from inception.flags.cluster import ClusterConfig
from inception.flags.table import refuse
from terngrad.cluster.channel import PortError, split_address
from terngrad.service.security import Tls, Withdrawn, is_loopback, listening_address


def tell_hosts(cluster: ClusterConfig) -> None:
    """Prints who takes part."""
    print(f"PS hosts are: {list(cluster.ps_hosts)}", flush=True)
    print(f"Worker hosts are: {list(cluster.worker_hosts)}", flush=True)


def security(cluster: ClusterConfig) -> Tls | None:
    """Certificates, if flags name them.

    Raises:
      ValueError: there are none, and a ps is not on this machine; or names the flag whose file
        cannot be read or holds something else.
    """
    if cluster.tls_ca:
        _check_certificates(cluster)
        return Tls(cluster.tls_ca, cluster.tls_cert, cluster.tls_key, cluster.tls_deny)
    if not cluster.allow_insecure_network:
        for host in cluster.ps_hosts:
            if not is_loopback(split_address(host)[0]):
                why = (
                    f"{host} is not on this machine: needs --tls_ca, --tls_cert and --tls_key, or "
                    "--allow_insecure_network in a network where all are trusted"
                )
                raise refuse("ps_hosts", cluster.ps_hosts, why)
    return None


def _check_certificates(cluster: ClusterConfig) -> None:
    """Says what is wrong with the files, which gRPC would not."""
    for flag in ("tls_ca", "tls_cert", "tls_key"):
        path = getattr(cluster, flag)
        try:
            open(path, "rb").close()
        except OSError as error:
            raise refuse(flag, path, f"cannot be read: {error.strerror}") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_verify_locations(cluster.tls_ca)
    except ssl.SSLError:
        raise refuse("tls_ca", cluster.tls_ca, "there is no certificate in it") from None
    try:
        context.load_cert_chain(cluster.tls_cert, cluster.tls_key, password="")
    except ssl.SSLError:
        why = f"there is no certificate in it, or none for --tls_key={cluster.tls_key}"
        raise refuse("tls_cert", cluster.tls_cert, why) from None
    try:
        Withdrawn(cluster.tls_deny)
    except (OSError, ValueError) as error:
        why = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        raise refuse("tls_deny", cluster.tls_deny, why) from None


def listen(start: Callable[[str], int], cluster: ClusterConfig, tls: Tls | None) -> str:
    """Lets a ps listen; returns, in words, to whom.

    Args:
      start: listens at "host:port", see `Server.start`.
      cluster: names this ps and its host.
      tls: its certificates, see `security`.

    Raises:
      ValueError: its port is taken, or its host another machine.
    """
    host, port = split_address(cluster.ps_hosts[cluster.task_id])
    only_here = tls is None and not cluster.allow_insecure_network
    addresses = [listening_address(host, port, only_here=only_here)]
    if not only_here:
        addresses.append(f"[::]:{port}")  # a router may know this machine by another address
    try:
        _listen_at_one_of(start, addresses)
    except PortError as error:
        raise refuse("ps_hosts", cluster.ps_hosts, str(error)) from None
    return "who have certificates" if tls else "on this machine" if only_here else "anywhere"


def _listen_at_one_of(start: Callable[[str], int], addresses: Sequence[str]) -> None:
    for address in addresses[:-1]:
        with contextlib.suppress(PortError):
            start(address)
            return
    start(addresses[-1])
