"""Names, addresses and ports of processes, and which addresses other machines can reach."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import ipaddress
import os
import random
import re
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from terngrad.cluster.errors import MembershipError, PortError

CONTROL_PORT_ABOVE = 1000  # of the chief's own port, unless the user says otherwise
LAST_PORT = (1 << 16) - 1
_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
_OUTGOING_ELSEWHERE = (49152, 65535)  # the IANA's dynamic ports


@dataclasses.dataclass(frozen=True)
class Interface:
    """A network interface of this machine; interfaces.py finds it.

    Attributes:
      name: its name.
      addresses: at least one, IPv4 first.
    """

    name: str
    addresses: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(self.addresses)})"

    def address_for(self, host: str) -> str:
        """Returns the address at which a process listens that others reach at `host`."""
        known = addresses_of(host)
        families = {_family(address) for address in known}
        same = [address for address in self.addresses if address in known]
        same += [address for address in self.addresses if _family(address) in families]
        return (same or self.addresses)[0]

    def source_for(self, address: str) -> str | None:
        """Returns the address from which to connect to another; None = of another family."""
        family = _family(address)
        return next((own for own in self.addresses if _family(own) == family), None)


def name_of(rank: int, hosts: Sequence[str]) -> str:
    """Returns the name of a process in messages."""
    return f"worker {rank} ({hosts[rank]})" if rank < len(hosts) else f"worker {rank}"


def split_address(address: str) -> tuple[str, int]:
    """Splits "host:port" or "[::1]:2222" into host and port.

    Raises:
      MembershipError: the address has another form, or the host cannot be one.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or len(port) > 5 or not 0 < int(port) <= LAST_PORT:
        raise MembershipError(f"{address!r} must be host:port, with a port from 1 to {LAST_PORT}")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise MembershipError(f"{address!r}: an IPv6 address must be in brackets, as [::1]:2222")
    host = host.strip("[]")
    check_host(host)
    return host, int(port)


def check_host(host: str) -> None:
    """Checks that a host may be looked up.

    Raises:
      MembershipError: it is neither an address nor a name; `getaddrinfo` would raise UnicodeError.
    """
    try:
        host.encode("idna")  # as `getaddrinfo` does, also with addresses
    except UnicodeError:
        allowed = "parts of 1 to 63 characters, with dots between them"
        raise MembershipError(f"{host!r:.80} cannot be a host; allowed are {allowed}") from None


def listen(
    host: str,
    port: int,
    *,
    only_here: bool = False,
    backlog: int | None = None,
    interface: Interface | None = None,
) -> socket.socket:
    """Listens at the address of `host`, or at all addresses if this machine does not have that one.

    Args:
      host: name or address by which others reach this process.
      port: 0 = one that is free.
      only_here: whether only this machine may connect; `host` is loopback.
      backlog: connections that wait to be accepted; None = Python's choice.
      interface: listens at an address of this one, unless `host` means this machine alone; None =
        of any.

    Raises:
      PortError: this process cannot listen there, for example because the port is taken.
    """
    chosen = sorted(addresses_of(host))[0] if only_here else _own_address(host)
    if interface and not only_here and not means_this_machine(host):
        chosen = interface.address_for(host)
    try:
        if chosen:
            try:
                return socket.create_server((chosen, port), family=_family(chosen), backlog=backlog)
            except OSError as error:
                # A router may translate the address.
                if only_here or interface or error.errno != errno.EADDRNOTAVAIL:
                    raise
        both = {"family": socket.AF_INET6, "dualstack_ipv6": True}
        return socket.create_server(
            ("", port), backlog=backlog, **both if socket.has_dualstack_ipv6() else {}
        )
    except OSError as error:
        reason = os.strerror(error.errno)  # without what Python adds
        raise PortError(f"cannot listen at {host_and_port(host, port)}: {reason}") from None


def dial(address: tuple[str, int], secs: float, interface: Interface | None) -> socket.socket:
    """Connects to a host and port.

    Args:
      address: host and port.
      secs: time-out of each attempt; a host may have several addresses.
      interface: whose address the connection comes from, unless the other's is loopback; None =
        the system's choice.

    Raises:
      OSError: nobody listens there, or does not answer in time.
    """
    if interface is None:
        return socket.create_connection(address, secs)
    host, port = address
    why = OSError(errno.EAFNOSUPPORT, f"{interface} has no address of the kind of {host}'s")
    for *_, found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        on_loopback = is_loopback_address(found[0])
        source = None if on_loopback else interface.source_for(found[0])
        if source or on_loopback:
            try:
                return socket.create_connection(found[:2], secs, source and (source, 0))
            except OSError as error:
                why = error
    raise why


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


def means_this_machine(host: str) -> bool:
    """Whether a host is a loopback address, or localhost, so that all processes are here."""
    address = _own_address(host)
    return address is not None and is_loopback_address(address)


def _own_address(host: str) -> str | None:
    """Returns the address of a name; None if other machines may resolve it to another address.

    Many machines resolve their own name to a loopback address, but other machines do not.
    """
    found = addresses_of(host)
    if host == "localhost":
        return "127.0.0.1" if "127.0.0.1" in found else next(iter(found), None)
    if len(found) != 1:
        return None
    (address,) = found
    return None if is_loopback_address(address) and not _is_literal(host) else address


def addresses_of(host: str) -> set[str]:
    """Returns the addresses of a name, or of an address itself; none if it is unknown."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return set()
    return {entry[4][0] for entry in found}


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach all addresses of a host."""
    found = addresses_of(host)
    return bool(found) and all(map(is_loopback_address, found))


def is_loopback_address(address: str) -> bool:
    """Whether an address (not a name) means this machine on every machine."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _is_literal(host: str) -> bool:
    try:
        return bool(ipaddress.ip_address(host))
    except ValueError:
        return False


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


_FIRST, _END = 10000, 65536  # services use lower ones


def unreserved_ports(count: int, host: str = "") -> list[int]:
    """Returns free ports, if possible outside the range of outgoing connections.

    So no connection takes a port before a process listens there, or while it restarts after a
    crash. Another process that looks for ports still may; see `reserved_ports`.

    Args:
      count: number of different ports.
      host: address of this machine at which they are free; "" = all IPv4 addresses.

    Raises:
      OSError: there are too few free ports, or this machine does not have the address.
    """
    with reserved_ports(count, host) as found:
        return found


@contextlib.contextmanager
def reserved_ports(count: int, host: str = "") -> Iterator[list[int]]:
    """Reserves free ports for other processes; for arguments and errors see `unreserved_ports`.

    A reserved port is bound, so that no search finds it free. Linux still lets a process listen
    there. Other systems would not, so there the ports are found but not reserved.
    """
    candidates = _candidate_ports()
    # Random order, so that processes that look at the same time find different ports.
    random.Random(os.urandom(16)).shuffle(candidates)
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        while candidates and len(found) < count:
            port = candidates.pop()
            with contextlib.suppress(OSError):
                stack.enter_context(_reserved(host, port))
                found.append(port)
        if len(found) < count:
            raise OSError(f"{count} free ports are needed; only {len(found)} were found")
        if sys.platform != "linux":
            stack.close()
        yield found


def _reserved(host: str, port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        bound.bind((host, port))
        # Not before `bind`: two processes could then bind the port.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    except OSError:
        bound.close()
        raise
    return bound


def _candidate_ports() -> list[int]:
    """Returns the ports outside the outgoing range, or all if that leaves none."""
    try:
        first, last = map(int, re.findall(r"\d+", _OUTGOING.read_text()))
    except (OSError, ValueError):
        first, last = _OUTGOING_ELSEWHERE
    ports = range(_FIRST, _END)
    return [port for port in ports if not first <= port <= last] or [*ports]
