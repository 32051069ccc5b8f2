"""A worker's gRPC channels to all ps."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Sequence

from terngrad.cluster.channel import name_of, split_address
from terngrad.service.calls import open_channel, ps_name
from terngrad.service.data_connection import dial
from terngrad.service.link import GrpcLink
from terngrad.service.members import Members
from terngrad.service.moved_stream import MovableCall
from terngrad.service.network import LinkEvents
from terngrad.service.security import Tls
from terngrad.service.streams import LONGEST_RESULT, hello, read_offer

_AGAIN_SECS = 10.0  # between attempts to leave gRPC, which takes longer


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
        secret: bytes = b"",
    ) -> None:
        """Sends nothing yet; see `Client` for the arguments."""
        self._timeout_secs, self._ps_hosts, self._secret = timeout_secs, ps_hosts, secret
        self._name = name_of(rank, worker_hosts)
        # Whether a certificate is withdrawn, the ps alone looks, as for the streams.
        self._members = Members(dataclasses.replace(tls, deny="")) if tls else None
        self._closed_ports: set[tuple[int, int]] = set()  # of ps, that cannot be reached now
        self._channels = [open_channel(host, tls, timeout_secs) for host in ps_hosts]
        self._introductions = [
            hello(rank, ps, ps_hosts, worker_hosts, rules) for ps in range(len(ps_hosts))
        ]

    def open(self, ps: int, method: str, events: LinkEvents, *, waits: bool = True) -> GrpcLink:
        """See `Network`."""
        channel, introduction = self._channels[ps], self._introductions[ps]
        connect = functools.partial(self._connect, ps)
        return GrpcLink(
            channel,
            method,
            introduction,
            self._timeout_secs,
            events,
            connect,
            waits=waits,
            secret=self._secret,
        )

    def _connect(self, ps: int, call: MovableCall) -> None:
        """Moves a stream to the data connection that its ps has offered, now or later."""
        if not (offer := read_offer(call.initial_metadata())):
            return
        is_closed = (ps, offer[0]) in self._closed_ports  # whose attempt may take a while
        if not is_closed and self._move(ps, call, *offer):
            return
        over = threading.Event()

        def try_again() -> None:
            while not over.wait(_AGAIN_SECS) and not self._move(ps, call, *offer):
                pass

        if call.add_callback(over.set):
            with contextlib.suppress(RuntimeError):  # no thread is left: the next stream tries
                threading.Thread(target=try_again, daemon=True).start()

    def _move(self, ps: int, call: MovableCall, port: int, token: bytes) -> bool:
        """Returns whether a stream has moved."""
        host, _ = split_address(self._ps_hosts[ps])
        name, place = ps_name(ps, self._ps_hosts), (ps, port)
        tell = lambda error: print(
            f"{error.between(self._name, name)}; it is opened again.", flush=True
        )
        try:
            call.move(
                dial((host, port), token, self._members, LONGEST_RESULT, self._timeout_secs, tell)
            )
        except OSError as error:
            if call.is_active() and place not in self._closed_ports:
                self._closed_ports.add(place)
                print(
                    f"{name}: gradients travel over gRPC, which takes longer: no connection to "
                    f"port {port}: {error}",
                    flush=True,
                )
            return False
        if place in self._closed_ports:
            self._closed_ports.discard(place)  # another stream may have done it
            print(f"{name}: gradients take the connection to port {port} now.", flush=True)
        return True

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
