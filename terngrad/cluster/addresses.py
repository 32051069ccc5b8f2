"""At which addresses a process listens, and which of them other machines can reach."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket

from terngrad.cluster.channel import PortError


def listen(
    host: str, port: int, *, only_here: bool = False, backlog: int | None = None
) -> socket.socket:
    """Listens at the address of `host`, or at all addresses if this machine does not have that one.

    Args:
      host: name or address by which others reach this process.
      port: 0 = one that is free.
      only_here: whether only this machine may connect; `host` is loopback.
      backlog: connections that wait to be accepted; None = Python's choice.

    Raises:
      PortError: this process cannot listen there, for example because the port is taken.
    """
    chosen = sorted(_addresses(host))[0] if only_here else own_address(host)
    try:
        if chosen:
            try:
                return socket.create_server((chosen, port), family=_family(chosen), backlog=backlog)
            except OSError as error:
                # A router may translate the address.
                if only_here or error.errno != errno.EADDRNOTAVAIL:
                    raise
        both = {"family": socket.AF_INET6, "dualstack_ipv6": True}
        return socket.create_server(
            ("", port), backlog=backlog, **both if socket.has_dualstack_ipv6() else {}
        )
    except OSError as error:
        reason = os.strerror(error.errno)  # without what Python adds
        raise PortError(f"cannot listen at {host_and_port(host, port)}: {reason}") from None


def host_and_port(host: str, port: int) -> str:
    """Returns "host:port", with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def address_towards(host: str) -> str:
    """Returns the address of this machine from which packets go to a host; sends none.

    Raises:
      OSError: the host is unknown or cannot be reached.
    """
    family, kind, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        return probe.getsockname()[0]


def own_address(host: str) -> str | None:
    """Returns the address of a name; None if other machines may resolve it to another address.

    Many machines resolve their own name to a loopback address, but other machines do not.
    """
    found = _addresses(host)
    if host == "localhost":
        return "127.0.0.1" if "127.0.0.1" in found else next(iter(found), None)
    if len(found) != 1:
        return None
    (address,) = found
    return None if is_loopback_address(address) and not _is_literal(host) else address


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach all addresses of a host."""
    found = _addresses(host)
    return bool(found) and all(map(is_loopback_address, found))


def is_loopback_address(address: str) -> bool:
    """Whether an address, not a name, means the own machine to all who have it."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _addresses(host: str) -> set[str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return set()
    return {entry[4][0] for entry in found}


def _is_literal(host: str) -> bool:
    try:
        return bool(ipaddress.ip_address(host))
    except ValueError:
        return False


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
