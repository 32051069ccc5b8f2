"""Addresses of this machine at which a test's processes may listen."""

import collections
import contextlib

from terngrad.cluster import addresses
from terngrad.cluster.addresses import host_and_port

# What the newest calls hold: other tests that run at the same time do not find these ports.
_HELD: collections.deque[contextlib.ExitStack] = collections.deque(maxlen=50)


def free_ports(count: int, host: str = "") -> list[int]:
    """Returns different free ports of a host, which this process holds for a while."""
    with contextlib.ExitStack() as stack:
        found = stack.enter_context(addresses.reserved_ports(count, host))
        if len(_HELD) == _HELD.maxlen:
            _HELD.popleft().close()
        _HELD.append(stack.pop_all())
        return found


def free_address(host: str = "127.0.0.1") -> str:
    """Returns HOST:PORT with a free port; OSError if this machine does not have the host."""
    return host_and_port(host, free_ports(1, host)[0])


def free_addresses(count: int) -> list[str]:
    """Returns `count` addresses 127.0.0.1:PORT with different free ports."""
    return [f"127.0.0.1:{port}" for port in free_ports(count)]
