"""How the ps are reached: at which hosts, with which certificates, and from where."""

import contextlib
import re
import ssl
import time
from collections.abc import Callable, Sequence

from inception.flags.cluster import ClusterConfig
from inception.flags.table import refuse
from terngrad.cluster.channel import PortError, split_address
from terngrad.service.security import Tls, Withdrawn, is_loopback, listening_address

_TIME = rb"(?:\x17\x0d|\x18\x0f)(\d{12,14}Z)"  # UTCTime or GeneralizedTime of a certificate
_VALIDITY = re.compile(rb"\x30[\x1e\x20\x22]" + _TIME + _TIME)


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
    if why := _out_of_date(cluster.tls_cert, time.time()):
        raise refuse("tls_cert", cluster.tls_cert, why)
    try:
        Withdrawn(cluster.tls_deny)
    except (OSError, ValueError) as error:
        why = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        raise refuse("tls_deny", cluster.tls_deny, why) from None


def _out_of_date(path: str, now: float) -> str:
    """Returns why a file's first certificate is not valid now; "" if it is.

    Args:
      path: certificate, as PEM.
      now: seconds since 1970.
    """
    with open(path, encoding="ascii", errors="replace") as file:
        first = re.search(r"-----BEGIN CERT.*?-----END CERTIFICATE-----", file.read(), re.DOTALL)
    dates = _VALIDITY.search(ssl.PEM_cert_to_DER_cert(first[0])) if first else None
    if not dates:  # as TLS will say
        return ""
    clock = time.strftime("%Y%m%d%H%M%SZ", time.gmtime(now))
    begin, end = (_with_century(date.decode()) for date in dates.groups())
    if begin <= clock <= end:
        return ""
    days = f"is valid from {_in_words(begin)} to {_in_words(end)} UTC"
    return f"{days}; the clock of this machine says {_in_words(clock)}"


def _with_century(date: str) -> str:
    """Writes YYMMDDhhmmssZ with four digits of the year, as RFC 5280 reads it."""
    return date if len(date) == 15 else f"{'19' if date >= '50' else '20'}{date}"


def _in_words(date: str) -> str:
    return f"{date[:4]}-{date[4:6]}-{date[6:8]} {date[8:10]}:{date[10:12]}"


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
