"""Watches the other workers while this one trains."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from inception.cluster.workers import Workers
from inception.flags.cluster import ClusterConfig
from terngrad.cluster.channel import Peer
from terngrad.cluster.pulse import Pulse
from terngrad.exchange import watching as exchange_watching
from terngrad.exchange.connection import Connection


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
    at_loss: list[Callable[[], str]] | None = None,
) -> Iterator[Workers]:
    """Watches the other workers until the end of the block.

    For `doors` see `Membership`, for `at_loss` see `Workers`. The workers compare `facts` whenever
    they compare others.
    """
    pulse, secs = pulse or Pulse(), cluster.worker_timeout_secs
    acts = [] if at_loss is None else at_loss
    watched = exchange_watching.watching(
        hosts, rank, peers, secs, pulse=pulse, doors=doors, at_loss=acts
    )
    with watched as membership:
        agree = lambda more: membership.agree({**facts, **more})
        yield Workers(rank, len(hosts), cluster.split_data, connect, agree, pulse, at_loss=acts)
