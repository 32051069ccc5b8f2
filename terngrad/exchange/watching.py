"""Watches the other processes of a training without parameter servers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from terngrad.cluster.channel import MembershipError, Peer, SharedError
from terngrad.cluster.encrypted import CONNECTION
from terngrad.cluster.membership import Membership, end_process
from terngrad.cluster.pulse import Pulse
from terngrad.exchange.operation_errors import OperationError, reason


@contextlib.contextmanager
def watching(
    hosts: Sequence[str],
    rank: int,
    peers: Mapping[int, Peer],
    timeout_secs: float,
    *,
    pulse: Pulse,
    doors: Mapping[int, str] = MappingProxyType({}),
    on_loss: Callable[[str], None] = end_process,
) -> Iterator[Membership]:
    """Watches the other processes until the end of the block; for the arguments see `Membership`.

    Raises:
      MembershipError: an operation between the processes failed.
      SharedError: bytes have changed on the way between two of them.
    """
    with Membership(
        hosts, rank, peers, timeout_secs, on_loss=on_loss, pulse=pulse, doors=doors
    ) as membership:
        try:
            yield membership
        except OperationError as error:
            if (text := reason(error, hosts)).startswith(CONNECTION):  # nobody is lost
                raise SharedError(text) from error
            membership.await_loss()  # whoever is lost has a name, which TensorFlow does not tell
            raise MembershipError(f"an operation between the workers failed: {text}") from error
