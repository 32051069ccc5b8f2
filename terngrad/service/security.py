"""Which processes may reach a ps: those with a certificate or, without TLS, those of a machine."""

from __future__ import annotations

import dataclasses
import ipaddress
import socket

import grpc

from terngrad.cluster.admission import own_address


@dataclasses.dataclass(frozen=True)
class Tls:
    """PEM files of a process: the authority's certificate, its own certificate, and its key.

    Both sides must show a certificate. The certificate of a ps must name its host in --ps_hosts.
    """

    ca: str
    cert: str
    key: str

    def server_credentials(self) -> grpc.ServerCredentials:
        """Returns the credentials of a ps; OSError names a file that cannot be read."""
        ca, cert, key = (_read(path) for path in (self.ca, self.cert, self.key))
        return grpc.ssl_server_credentials([(key, cert)], ca, require_client_auth=True)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Returns the credentials of a worker; OSError names a file that cannot be read."""
        ca, cert, key = (_read(path) for path in (self.ca, self.cert, self.key))
        return grpc.ssl_channel_credentials(ca, key, cert)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach all addresses of a host."""
    found = _addresses(host)
    return bool(found) and all(ipaddress.ip_address(address).is_loopback for address in found)


def listening_address(host: str, port: int, *, only_here: bool) -> str:
    """Returns the address at which a ps listens.

    Args:
      host: name or address by which workers reach the ps.
      port: port of the ps.
      only_here: whether only this machine may connect; `host` is loopback.
    """
    address = sorted(_addresses(host))[0] if only_here else own_address(host) or "::"
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _addresses(host: str) -> set[str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return set()
    return {entry[4][0].partition("%")[0] for entry in found}


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
