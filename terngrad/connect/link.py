"""A worker's channels to the ps; each is opened again when it breaks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from terngrad.cluster.channel import MembershipError, name_of
from terngrad.connect.calling import ChannelOpener, RefusedError, why_ended
from terngrad.connect.channel import Channel, End, KeepAlive, Outbox
from terngrad.connect.introduction import Hello
from terngrad.connect.network import LinkEvents
from terngrad.connect.tls import Members

_PAUSE_SECS = 2.0  # after a refusal by a ps that may be started again with other flags


class ChannelLink:
    """A `Link` with one channel at a time."""

    def __init__(
        self,
        name: str,
        open_channel: Callable[[], Channel],
        timeout_secs: float,
        events: LinkEvents,
        *,
        own_name: str = "",
        waits: bool = True,
    ) -> None:
        """Opens the first channel; waits for a ps that does not listen yet.

        Args:
          name: of the ps, for messages.
          open_channel: opens a channel to it, or raises MembershipError.
          timeout_secs: for which it tries, for messages.
          events: calls to the user of this link.
          own_name: of this process, for messages.
          waits: see `Network.open`.

        Raises:
          MembershipError: the ps refuses this worker, or cannot be reached in time.
        """
        self._name, self._own_name, self._open_channel = name, own_name, open_channel
        self._timeout_secs, self._events = timeout_secs, events
        self._over, self._last_message = False, None
        self._is_up = threading.Event()
        self._first, self._outbox = self._open() if waits else (None, Outbox())
        if self._first:
            self._is_up.set()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """See `Link`."""
        self._thread.start()

    def send(self, message: bytes) -> None:
        """See `Link`."""
        self._outbox.put(message)

    @property
    def is_up(self) -> bool:
        """See `Link`."""
        return self._is_up.is_set()

    def wait_until_up(self, secs: float) -> bool:
        """See `Link`."""
        return self._is_up.wait(secs)

    @property
    def unsent(self) -> int:
        """See `Link`."""
        return len(self._outbox)

    def end(self, last_message: bytes | None = None) -> None:
        """See `Link`."""
        self._over, self._last_message = True, last_message
        self._end(self._outbox)

    def join(self, timeout_secs: float) -> None:
        """See `Link`."""
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_secs)

    def _open(self) -> tuple[Channel, Outbox]:
        channel = self._open_channel()
        return channel, Outbox(channel)

    def _end(self, outbox: Outbox) -> None:
        if self._last_message is not None:
            outbox.put(self._last_message)
        outbox.close()

    def _run(self) -> None:
        try:
            self._follow()
        except Exception as error:  # otherwise the worker would wait forever
            self._events.on_loss(f"{self._name} sent a message that cannot be read: {error!r}")
            raise

    def _follow(self) -> None:
        """Reads one channel after another; the first may have to be opened."""
        channel, self._first = self._first, None  # a channel that has ended is kept nowhere
        why = ""
        while channel or (channel := self._open_another(why)):
            outbox = self._outbox
            sender = threading.Thread(target=_send_all, args=(outbox, channel), daemon=True)
            sender.start()
            try:
                for message in channel:
                    self._events.on_message(message)
            finally:
                outbox.cut()
            if self._over:
                sender.join(self._timeout_secs)
                return
            self._is_up.clear()
            why = why_ended(channel, self._name)
            if channel.changed:
                told = channel.changed.between(self._own_name, self._name)
                print(f"{told}; it is opened again.", flush=True)
            if channel.ending.end is End.REFUSED:
                self._events.on_refusal(why)
                return
            self._events.on_break()
            channel = None

    def _open_another(self, why: str) -> Channel | None:
        """Opens a channel; None if the link ends. `why` tells how the last one ended, if any."""
        while not self._over:
            try:
                channel, outbox = self._open()
            except RefusedError as error:
                if not self._events.on_refusal(str(error)):
                    return None
                time.sleep(_PAUSE_SECS)
                continue
            except MembershipError as error:
                if self._over:
                    return None
                late = f"{why}; it did not come back within {self._timeout_secs:g} s: {error}"
                if not self._events.on_loss(late if why else str(error)):
                    return None
                continue
            with self._events.lock:
                self._outbox = outbox
                self._events.on_open()
            if self._over:  # `end` may have used the outbox before
                self._end(outbox)
            self._is_up.set()
            return channel
        return None


def _send_all(outbox: Outbox, channel: Channel) -> None:
    outbox.send_all()
    channel.end()


class SocketNetwork:
    """A `Network` of channels and threads."""

    def __init__(
        self,
        ps_hosts: Sequence[str],
        worker_hosts: Sequence[str],
        rank: int,
        timeout_secs: float,
        longest: int,
        members: Members | None = None,
        rules: str = "",
        secret: bytes = b"",
    ) -> None:
        """Sends nothing yet.

        Args:
          ps_hosts: "host:port" of each ps.
          worker_hosts: "host:port" of each worker.
          rank: index of this worker.
          timeout_secs: longest time for which a ps may be lost.
          longest: most bytes of a message.
          members: with TLS; None = plain text.
          rules: see `Hello`.
          secret: that the ps must have, too; b"" = none.
        """
        self._timeout_secs, self._name = timeout_secs, name_of(rank, worker_hosts)
        self._alive = KeepAlive()
        self._over = threading.Event()
        self._make = lambda ps, method: ChannelOpener(
            Hello(method, rank, ps, list(worker_hosts), list(ps_hosts), rules, timeout_secs),
            longest,
            members,
            secret,
        )

    def open(self, ps: int, method: str, events: LinkEvents, *, waits: bool = True) -> ChannelLink:
        """See `Network`."""
        caller = self._make(ps, method)

        def open_channel() -> Channel:
            channel = caller.open(self._over)
            self._alive.add(channel)
            if self._over.is_set():
                channel.cut()
            return channel

        return ChannelLink(
            caller.name,
            open_channel,
            self._timeout_secs,
            events,
            own_name=self._name,
            waits=waits,
        )

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
        self._over.set()
        self._alive.cut()
        self._alive.stop()
