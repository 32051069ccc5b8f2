"""The network interfaces of this machine, and the one that a process uses."""

from __future__ import annotations

import ctypes
import ipaddress
import os
import socket
from collections.abc import Iterator, Mapping

from terngrad.cluster.addresses import (
    Interface,
    address_towards,
    addresses_of,
    is_loopback,
    is_loopback_address,
    means_this_machine,
)

VARIABLE = "TERNGRAD_INTERFACE"  # name of the interface, where no flag or argument names it


class _Entry(ctypes.Structure):
    """The first fields of Linux's struct ifaddrs."""


_Entry._fields_ = [
    ("next", ctypes.POINTER(_Entry)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
]
_ADDRESS_AT = {socket.AF_INET: (4, 4), socket.AF_INET6: (8, 16)}  # offset and bytes in a sockaddr


def found() -> list[Interface]:
    """Returns the interfaces that have an address, by name.

    Link-local IPv6 addresses are left out: they mean nothing to other machines.
    """
    addresses: dict[str, list[str]] = {}
    for name, address in _entries():
        if ":" not in address or not ipaddress.ip_address(address).is_link_local:
            addresses.setdefault(name, []).append(address)
    order = lambda address: ":" in address
    return [
        Interface(name, tuple(sorted(addresses[name], key=order))) for name in sorted(addresses)
    ]


def named(name: str) -> Interface:
    """Returns an interface.

    Raises:
      ValueError: it does not exist, or has no address; the message lists those that have.
    """
    interfaces = found()
    for each in interfaces:
        if each.name == name:
            return each
    exists = name in {known for _, known in socket.if_nameindex()}
    allowed = f"allowed are {', '.join(map(str, interfaces))}"
    raise ValueError(f"it has no address; {allowed}" if exists else allowed)


def chosen(name: str, environment: Mapping[str, str] = os.environ) -> Interface | None:
    """Returns the interface that a process uses; None = any.

    Args:
      name: as a flag or argument gives it; "" = as `VARIABLE` does.
      environment: variables of the process.

    Raises:
      ValueError: see `named`.
    """
    name = name or environment.get(VARIABLE, "")
    return named(name) if name else None


def published(host: str, name: str = "", environment: Mapping[str, str] = os.environ) -> str:
    """Returns the address of this machine that a process publishes to the others.

    Args:
      host: known to all; without a chosen interface it is the address from which packets go there.
      name: see `chosen`, as for the rest.
      environment: likewise.

    Raises:
      ValueError: see `named`.
      OSError: the host is unknown or cannot be reached.
    """
    interface = chosen(name, environment)
    if interface and not means_this_machine(host):
        return interface.address_for(host)
    return address_towards(host)


def why_cannot_listen(interface: Interface, host: str) -> str:
    """Returns why a process at `host` cannot listen at an interface; "" if it can."""
    known = {address for address in addresses_of(host) if not is_loopback_address(address)}
    if known.intersection(interface.addresses):
        return ""
    for other in found():
        if shared := sorted(known.intersection(other.addresses)):
            return (
                f"the others look for this process at {shared[0]}, which {other.name} has: allowed "
                f"is {other.name}, or an address of {interface} in the list of hosts"
            )
    return ""  # a router may translate the address


def describe_use(interface: Interface, host: str | None, others: Mapping[str, str]) -> str:
    """Returns which addresses a process uses, for its log.

    Args:
      interface: its own.
      host: at which the others look for it; None = they do not.
      others: hosts to which it connects, by the names of their processes.
    """
    is_external = not is_loopback_address(interface.addresses[0])
    hosts = [*others.values()] if host is None else [host]
    if is_external and hosts and all(map(means_this_machine, hosts)):
        return f"uses loopback addresses, not {interface}: all processes are on this machine"
    places = "" if host is None else f"listens at {interface.address_for(host)} and "
    text = f"{places}connects from {', '.join(interface.addresses)} of {interface.name}"
    elsewhere = [name for name, other in others.items() if not _leads_there(interface, other)]
    if not elsewhere:
        return text
    return f"{text}, but packets to {', '.join(elsewhere)} leave by another interface"


def _leads_there(interface: Interface, host: str) -> bool:
    """Whether the system sends packets to a host through an interface, as far as is known."""
    try:
        return is_loopback(host) or address_towards(host) in interface.addresses
    except OSError:
        return True


def _entries() -> Iterator[tuple[str, str]]:
    """Yields the name of an interface with each of its addresses."""
    library, first = ctypes.CDLL(None, use_errno=True), ctypes.POINTER(_Entry)()
    if library.getifaddrs(ctypes.byref(first)):
        raise OSError(ctypes.get_errno(), "the network interfaces cannot be read")
    try:
        entry = first
        while entry:
            if (at := entry.contents.address) is not None:
                family = ctypes.c_ushort.from_address(at).value
                if family in _ADDRESS_AT:
                    offset, size = _ADDRESS_AT[family]
                    address = socket.inet_ntop(family, ctypes.string_at(at + offset, size))
                    yield os.fsdecode(entry.contents.name), address
            entry = entry.contents.next
    finally:
        library.freeifaddrs(first)
