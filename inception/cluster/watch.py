"""Watches the other workers while this one trains."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from inception.cluster.workers import Workers
from inception.flags.cluster import ClusterConfig
from terngrad.cluster.channel import Peer
from terngrad.cluster.membership import Membership
from terngrad.cluster.pulse import Pulse
from terngrad.exchange.connection import Connection
from terngrad.exchange.operation_errors import OperationError, reason


@contextlib.contextmanager
def watching(
    cluster: ClusterConfig,
    hosts: Sequence[str],
    rank: int,
    peers: Mapping[int, Peer],
    connect: Callable[[], Connection],
    *,
    pulse: Pulse | None = None,
    doors: Mapping[int, str] = MappingProxyType({}),
    facts: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Workers]:
    """Watches the other workers until the end of the block.

    For `doors` see `Membership`. The workers compare `facts` whenever they compare others.
    """
    pulse, timeout_secs = pulse or Pulse(), cluster.worker_timeout_secs
    with Membership(hosts, rank, peers, timeout_secs, pulse=pulse, doors=doors) as membership:
        agree = lambda more: membership.agree({**facts, **more})
        try:
            yield Workers(rank, len(hosts), cluster.split_data, connect, agree, pulse)
        except OperationError as error:
            membership.await_loss()  # whoever is lost has a name, which TensorFlow does not tell
            text = f"an operation between the workers failed: {reason(error, hosts)}"
            raise ValueError(text) from error
