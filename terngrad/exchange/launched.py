"""How processes meet that a launcher (mpirun, horovodrun) started and that can talk already.

Their engine ends or waits for ever when one is lost, and does not say which. So they open a channel
of their own beside it, at a free port that the chief picks.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Callable
from typing import Any

from terngrad.exchange.admission import listen, reach_chief, receive_all
from terngrad.exchange.channel import Peer

_SIOCGIFADDR = 0x8915  # Linux: address of a network interface
_LOOPBACK = "127.0.0.1"

Gather = Callable[[Any], list[Any]]  # every process' object, in the order of the processes


def join(rank: int, gather: Gather, timeout_secs: float) -> tuple[list[str], dict[int, Peer]]:
    """Meets the other processes; returns when all have come.

    Args:
      rank: index of this process.
      gather: all processes call it together; returns what each of them gave, in their order.
      timeout_secs: how long to wait.

    Returns:
      The host of each process, and the connections as `admission.join` returns them.

    Raises:
      MembershipError: names the processes that did not come or cannot be reached.
    """
    hosts = gather(socket.gethostname())
    on_one_machine = len(set(gather(_network()))) == 1
    if rank:
        return hosts, reach_chief(gather(None)[0], hosts, rank, timeout_secs)
    listener = listen(_LOOPBACK if on_one_machine else "", 0)
    port = listener.getsockname()[1]
    names = [_LOOPBACK] if on_one_machine else [socket.gethostname(), *_addresses()]
    gather([f"{name}:{port}" for name in names])
    return hosts, receive_all(listener, hosts, timeout_secs)


def _network() -> str:
    """Equal for processes that reach each other at the loopback address."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return socket.gethostname()


def _addresses() -> list[str]:
    """This machine's IPv4 addresses, for where its name leads elsewhere; none if not on Linux."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        for _, name in socket.if_nameindex():
            try:
                reply = fcntl.ioctl(s, _SIOCGIFADDR, struct.pack("256s", name[:15].encode()))
            except OSError:
                continue
            found.append(socket.inet_ntoa(reply[20:24]))
    return [address for address in found if not address.startswith("127.")]
