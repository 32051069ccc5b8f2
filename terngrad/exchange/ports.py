"""Ports of this machine at which nobody listens."""

import contextlib
import random
import re
import socket
from pathlib import Path

_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
_OUTGOING_ELSEWHERE = (49152, 65535)  # as the IANA has it
_FIRST, _END = 10000, 65536  # lower ones belong to services


def free_ports(count: int) -> list[int]:
    """Returns ports that are free, of those that outgoing connections are never given.

    So a process finds its port free when it listens, and again when it comes back after a crash.

    Raises:
      OSError: there are not so many.
    """
    candidates = _lasting()
    random.SystemRandom().shuffle(candidates)  # others look for ports at the same time
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        while candidates and len(found) < count:
            port = candidates.pop()
            taken = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                taken.bind(("", port))
                found.append(port)
    if len(found) < count:
        raise OSError(f"{count} free ports are needed; found were {len(found)}")
    return found


def _lasting() -> list[int]:
    """Ports that are no outgoing connection's; all where there are none of these."""
    try:
        first, last = map(int, re.findall(r"\d+", _OUTGOING.read_text()))
    except (OSError, ValueError):
        first, last = _OUTGOING_ELSEWHERE
    ports = range(_FIRST, _END)
    return [port for port in ports if not first <= port <= last] or [*ports]
