"""Free ports of this machine."""

import contextlib
import os
import random
import re
import socket
from pathlib import Path

_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
_OUTGOING_ELSEWHERE = (49152, 65535)  # the IANA's dynamic ports
_FIRST, _END = 10000, 65536  # services use lower ones


def free_ports(count: int, host: str = "") -> list[int]:
    """Returns free ports, if possible outside the range of outgoing connections.

    So no connection takes a port before a process listens there, or while it restarts after a
    crash. Another process that looks for ports still may.

    Args:
      count: number of different ports.
      host: address of this machine at which they are free; "" = all IPv4 addresses.

    Raises:
      OSError: there are too few free ports, or this machine does not have the address.
    """
    candidates = _lasting()
    # Random order, so that processes that look at the same time find different ports.
    random.Random(os.urandom(16)).shuffle(candidates)
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        while candidates and len(found) < count:
            port = candidates.pop()
            with contextlib.suppress(OSError):
                stack.enter_context(_bound(host, port))
                found.append(port)
    if len(found) < count:
        raise OSError(f"{count} free ports are needed; only {len(found)} were found")
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
    """Returns the ports outside the outgoing range, or all if that leaves none."""
    try:
        first, last = map(int, re.findall(r"\d+", _OUTGOING.read_text()))
    except (OSError, ValueError):
        first, last = _OUTGOING_ELSEWHERE
    ports = range(_FIRST, _END)
    return [port for port in ports if not first <= port <= last] or [*ports]
