"""Ports of this machine at which nobody listens."""

import contextlib
import os
import random
import re
import socket
from pathlib import Path

_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
_OUTGOING_ELSEWHERE = (49152, 65535)  # as the IANA has it
_FIRST, _END = 10000, 65536  # lower ones belong to services


def free_ports(count: int, host: str = "") -> list[int]:
    """Returns ports that are free now, where there are some of those no outgoing connection gets.

    No connection then takes one before a process listens there, or while it comes back after a
    crash. Another process that looks for ports may.

    Args:
      count: of different ports.
      host: address of this machine at which they are free; "" = all of IPv4.

    Raises:
      OSError: there are not so many, or this machine has no such address.
    """
    candidates = _lasting()
    # Others look at the same time, and are not to find the same.
    random.Random(os.urandom(16)).shuffle(candidates)
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        while candidates and len(found) < count:
            port = candidates.pop()
            with contextlib.suppress(OSError):
                stack.enter_context(_bound(host, port))
                found.append(port)
    if len(found) < count:
        raise OSError(f"{count} free ports are needed; found were {len(found)}")
    return found


def _bound(host: str, port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound


def _lasting() -> list[int]:
    """Ports that are no outgoing connection's; all where there are none of these."""
    try:
        first, last = map(int, re.findall(r"\d+", _OUTGOING.read_text()))
    except (OSError, ValueError):
        first, last = _OUTGOING_ELSEWHERE
    ports = range(_FIRST, _END)
    return [port for port in ports if not first <= port <= last] or [*ports]
