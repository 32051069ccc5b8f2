"""A worker's gRPC channels to all ps."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Sequence

import grpc

from terngrad.cluster.channel import split_address
from terngrad.service.calls import open_channel, ps_name
from terngrad.service.data_connection import DataConnection, dial
from terngrad.service.link import GrpcLink
from terngrad.service.members import Members
from terngrad.service.network import LinkEvents
from terngrad.service.security import Tls
from terngrad.service.streams import LONGEST_RESULT, hello, read_offer


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
        self._timeout_secs, self._ps_hosts = timeout_secs, ps_hosts
        # Whether a certificate is withdrawn, the ps alone looks, as for the streams.
        self._members = Members(dataclasses.replace(tls, deny="")) if tls else None
        self._closed_ports: set[tuple[int, int]] = set()  # of ps, that could not be reached
        self._channels = [open_channel(host, tls, timeout_secs) for host in ps_hosts]
        self._introductions = [
            hello(rank, ps, ps_hosts, worker_hosts, rules) for ps in range(len(ps_hosts))
        ]

    def open(self, ps: int, method: str, events: LinkEvents, *, waits: bool = True) -> GrpcLink:
        """See `Network`."""
        channel, introduction = self._channels[ps], self._introductions[ps]
        connect = functools.partial(self._connect, ps)
        return GrpcLink(
            channel, method, introduction, self._timeout_secs, events, connect, waits=waits
        )

    def _connect(self, ps: int, call: grpc.Call) -> DataConnection | None:
        """Opens the data connection that a ps has offered; None if there is none."""
        if not (offer := read_offer(call.initial_metadata())):
            return None
        port, token = offer
        if (ps, port) in self._closed_ports:
            return None
        host, _ = split_address(self._ps_hosts[ps])
        try:
            return dial((host, port), token, self._members, LONGEST_RESULT, self._timeout_secs)
        except OSError as error:
            if not call.is_active():  # the ps has ended, or this worker does
                return None
            self._closed_ports.add((ps, port))
            print(
                f"{ps_name(ps, self._ps_hosts)}: gradients travel over gRPC, which takes longer: "
                f"no connection to port {port}: {error}",
                flush=True,
            )
            return None

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
