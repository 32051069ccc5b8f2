"""Who may reach a ps: who has a certificate, or else who is on this machine."""

from __future__ import annotations

import dataclasses
import ipaddress
import socket

import grpc

from terngrad.cluster.admission import own_address


@dataclasses.dataclass(frozen=True)
class Tls:
    """PEM files of a process: the authority that signed all certificates, and its own.

    Both sides must show a certificate. That of a ps must name its host in --ps_hosts.
    """

    ca: str
    cert: str
    key: str

    def server_credentials(self) -> grpc.ServerCredentials:
        """For a ps; OSError names a file that cannot be read."""
        ca, cert, key = (_read(path) for path in (self.ca, self.cert, self.key))
        return grpc.ssl_server_credentials([(key, cert)], ca, require_client_auth=True)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For a worker; OSError names a file that cannot be read."""
        ca, cert, key = (_read(path) for path in (self.ca, self.cert, self.key))
        return grpc.ssl_channel_credentials(ca, key, cert)


def is_loopback(host: str) -> bool:
    """Whether all addresses that a name stands for are reached by this machine alone."""
    found = _addresses(host)
    return bool(found) and all(ipaddress.ip_address(address).is_loopback for address in found)


def listening_address(host: str, port: int, *, only_here: bool) -> str:
    """Where a ps listens whose host is known by a name.

    Args:
      host: by which the workers reach it.
      port: there.
      only_here: for this machine alone; `host` is loopback.
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
