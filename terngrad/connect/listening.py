"""Where a ps listens."""

from __future__ import annotations

from collections.abc import Callable

from terngrad.cluster.addresses import listening_address
from terngrad.cluster.channel import PortError, split_address
from terngrad.connect.certificates import Tls


def listen(start: Callable[[str], int], address: str, tls: Tls | None, *, is_open: bool) -> str:
    """Lets a ps listen; returns, in words, to whom.

    Args:
      start: listens at "host:port", see `Server.start`.
      address: "host:port" of this ps, as the workers know it.
      tls: its certificates.
      is_open: whether other machines may connect without certificates.

    Raises:
      PortError: its port is taken, or its host another machine.
    """
    host, port = split_address(address)
    only_here = tls is None and not is_open
    chosen = listening_address(host, port, only_here=only_here)
    if only_here:
        start(chosen)
        return "on this machine"
    try:
        try:
            start(chosen)
        except PortError:
            start(f"[::]:{port}")  # a router may know this machine by another address
    except PortError as error:
        why = str(error).rpartition(": ")[2]
        raise PortError(f"cannot listen at {address}: {why}") from None
    return "who have certificates" if tls else "anywhere"
