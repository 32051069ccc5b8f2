"""Ends connections to a ps whose callers do not introduce themselves in time, or are too many.

gRPC accepts connections from anybody, and knows who calls only after a handshake. It has a limit
for all connections together (see `descriptors`); without more, one host could take them all. So a
thread looks regularly at the connections of this process. On systems other than Linux, which has
/proc, only gRPC's limits hold.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import os
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator

from terngrad.service.log_limiter import LogLimiter

_LOOK_SECS = 0.5
_PATIENCE_SECS = 10.0  # for the handshake and the introduction
_MOST_OF_A_HOST = 32  # connections without an introduction, besides those of workers

# It was closed meanwhile, listens, or is over.
_GONE = (errno.ENOENT, errno.EBADF, errno.ENOTCONN, errno.EINVAL, errno.ENOTSOCK)

Address = tuple[str, int]


class Doorkeeper:
    """Watches the connections to one port; any thread may call."""

    def __init__(
        self,
        log: LogLimiter,
        workers: int = 0,
        patience_secs: float = _PATIENCE_SECS,
        most_of_a_host: int = _MOST_OF_A_HOST,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Does not watch yet.

        Args:
          log: gets a line a minute about the connections that were ended.
          workers: number of workers, which may all join at once, from one host.
          patience_secs: time in which a caller must be admitted.
          most_of_a_host: connections of a host that may wait for that, besides those of the
            workers; the oldest ones are ended.
          clock: returns seconds.
        """
        self._log, self._clock = log, clock
        self._patience_secs, self._most_of_a_host = patience_secs, workers + most_of_a_host
        self._came_at: dict[Address, float] = {}
        self._admitted: set[Address] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def admit(self, peer: str) -> None:
        """Notes that the caller of a connection is admitted; `peer` as gRPC writes it."""
        if address := _address(peer):
            with self._lock:
                self._admitted.add(address)

    def watch(self, port: int, look: Callable[[], None] = lambda: None) -> None:
        """Watches the connections to a port of this process, until `close`; also calls `look`."""
        self._thread = threading.Thread(target=self._run, args=(port, look), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the watch."""
        self._closed.set()
        if self._thread:
            self._thread.join()

    def _run(self, port: int, look: Callable[[], None]) -> None:
        while not self._closed.wait(_LOOK_SECS):
            with contextlib.suppress(Exception):  # such as a log on a full disk: it looks again
                self._look(port)
                look()

    def _look(self, port: int) -> None:
        """Ends the connections that are too old or too many."""
        now, ended = self._clock(), collections.Counter[str]()
        before = frozenset(self._admitted)
        try:
            found = dict(_connections(port))
        except OSError:  # no descriptor is left, or this is not Linux
            return  # who is not seen would count as gone, and as a stranger at the next look
        with self._lock:
            self._admitted -= before - found.keys()
            strangers = found.keys() - self._admitted
        self._came_at = {peer: self._came_at.get(peer, now) for peer in found}
        waiting = collections.Counter(host for host, _ in strangers)
        for peer in sorted(strangers, key=self._came_at.__getitem__):  # the oldest first
            host = peer[0]
            too_many = waiting[host] - ended[host] > self._most_of_a_host
            if too_many or now - self._came_at[peer] >= self._patience_secs:
                ended[host] += self._end_stranger(found[peer], peer)
        for host, count in (+ended).items():
            text = f"Ended {count} connections from {host} that did not introduce themselves."
            self._log(text, kind="connections", most=1)

    def _end_stranger(self, descriptor: int, peer: Address) -> bool:
        """Ends a connection, unless its caller was admitted meanwhile; returns whether it has."""
        with self._lock:
            if peer in self._admitted:
                return False
            _end(descriptor, peer)
        return True


def _connections(port: int) -> Iterator[tuple[Address, int]]:
    """Yields who called a port of this process, and the descriptor of the connection.

    Raises:
      OSError: they cannot be looked at.
    """
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with _copy(int(name)) as copy:
                is_tcp = copy.family in (socket.AF_INET, socket.AF_INET6)
                if is_tcp and copy.getsockname()[1] == port:
                    yield _peer(copy), int(name)
        except OSError as error:
            if error.errno not in _GONE:
                raise


def _end(descriptor: int, peer: Address) -> None:
    """Shuts a connection down, unless its descriptor has got another meaning."""
    with contextlib.suppress(OSError), _copy(descriptor) as copy:  # it may have ended by itself
        if _peer(copy) == peer:
            copy.shutdown(socket.SHUT_RDWR)


def _copy(descriptor: int) -> socket.socket:
    """Returns a copy, which keeps a connection from being replaced while this thread looks at it.

    Held one at a time: with as many more a flood would take all descriptors.
    """
    return socket.socket(fileno=os.dup(descriptor))


def _peer(connection: socket.socket) -> Address:
    host, port = connection.getpeername()[:2]
    # As gRPC names a caller by IPv4 where IPv6 listens for both.
    return _without_scope(host).removeprefix("::ffff:"), port


def _address(peer: str) -> Address | None:
    """Returns the address in gRPC's name of a peer, as "ipv6:%5B::1%5D:5000"."""
    kind, _, address = urllib.parse.unquote(peer).partition(":")
    host, _, port = address.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdecimal():
        return None
    return _without_scope(host.strip("[]")), int(port)


def _without_scope(host: str) -> str:
    """Returns an address without its network interface, which gRPC writes in another way."""
    return host.partition("%")[0]
