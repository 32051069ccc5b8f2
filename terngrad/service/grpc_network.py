"""A worker's gRPC channels to all ps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from terngrad.service.calls import open_channel
from terngrad.service.link import GrpcLink
from terngrad.service.network import LinkEvents
from terngrad.service.security import Tls
from terngrad.service.streams import hello


class GrpcNetwork:
    """A `Network` of gRPC channels and threads."""

    def __init__(
        self,
        ps_hosts: Sequence[str],
        worker_hosts: Sequence[str],
        rank: int,
        timeout_secs: float,
        tls: Tls | None = None,
        rules: str = "",
    ) -> None:
        """Sends nothing yet; see `Client` for the arguments."""
        self._timeout_secs = timeout_secs
        self._channels = [open_channel(host, tls, timeout_secs) for host in ps_hosts]
        self._introductions = [
            hello(rank, ps, ps_hosts, worker_hosts, rules) for ps in range(len(ps_hosts))
        ]

    def open(self, ps: int, method: str, events: LinkEvents, *, waits: bool = True) -> GrpcLink:
        """See `Network`."""
        channel, introduction = self._channels[ps], self._introductions[ps]
        return GrpcLink(channel, method, introduction, self._timeout_secs, events, waits=waits)

    def repeat(self, secs: float, call: Callable[[], None]) -> Callable[[], None]:
        """See `Network`."""
        over = threading.Event()

        def run() -> None:
            while not over.wait(secs):
                call()

        threading.Thread(target=run, daemon=True).start()
        return over.set

    def close(self) -> None:
        """See `Network`."""
        for channel in self._channels:
            channel.close()
