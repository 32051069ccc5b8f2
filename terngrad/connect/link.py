"""A worker's channels to the ps; each is opened again when it breaks."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from terngrad.cluster.errors import MembershipError
from terngrad.connect.calling import ChannelOpener, RefusedError, why_ended
from terngrad.connect.channel import Channel, ChannelEnd, FrameError, KeepAlive, Outbox
from terngrad.connect.config import ConnectConfig

_PAUSE_SECS = 2.0  # after a refusal by a ps that may be started again with other flags


@dataclasses.dataclass(frozen=True)
class LinkEvents:
    """Calls from a link to its user, all from one thread.

    Attributes:
      lock: the user's lock; held while a channel replaces a broken one, so that the messages of
        `on_open` are sent first.
      on_message: called with each message; a FrameError says that it cannot be read.
      on_break: called when a channel breaks.
      on_open: called when another channel is open.
      on_loss: called with the reason if no channel can be opened in time; the link goes on
        trying if it returns True.
      on_refusal: called with the reason if the ps refuses this worker; the link goes on trying if
        it returns True.
      on_message_refusal: called with the reason if the ps refuses a message; the link then ends.
    """

    lock: AbstractContextManager
    on_message: Callable[[bytes], None]
    on_break: Callable[[], None]
    on_open: Callable[[], None]
    on_loss: Callable[[str], bool | None]
    on_refusal: Callable[[str], bool | None]
    on_message_refusal: Callable[[str], object]


class ChannelLink:
    """A worker's link to a ps: one channel at a time, which is opened again when it breaks.

    Messages sent while no channel is open are lost: the user repeats the necessary ones in
    `on_open`.

    Attributes:
      was_ended: whether the other side ended the last channel; False = it was silent.
    """

    def __init__(
        self,
        name: str,
        open_channel: Callable[[], Channel],
        timeout_secs: float,
        events: LinkEvents,
        *,
        own_name: str = "",
        waits: bool,
        nobody_listens: Callable[[], bool] = lambda: False,
    ) -> None:
        """Opens the first channel; waits for a ps that does not listen yet.

        Args:
          name: of the ps, for messages.
          open_channel: opens a channel to it, or raises MembershipError.
          timeout_secs: how long an ending link waits until its messages are sent.
          events: calls to the user of this link.
          own_name: of this process, for messages.
          waits: see `SocketNetwork.open`.
          nobody_listens: see the property.

        Raises:
          MembershipError: the ps refuses this worker, or cannot be reached in time.
        """
        self._name, self._own_name, self._open_channel = name, own_name, open_channel
        self._timeout_secs, self._events = timeout_secs, events
        self._nobody_listens = nobody_listens
        self._over, self._last_message = False, None
        self._is_up = threading.Event()
        self.was_ended = False
        self._first, self._outbox = self._open() if waits else (None, Outbox())
        if self._first:
            self._is_up.set()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Starts to read."""
        self._thread.start()

    def send(self, message: bytes) -> None:
        """Sends a message if a channel is open; never waits."""
        self._outbox.put(message)

    @property
    def is_up(self) -> bool:
        """Whether a channel is open."""
        return self._is_up.is_set()

    @property
    def nobody_listens(self) -> bool:
        """Whether no process listened at the address of the ps at the last attempt."""
        return self._nobody_listens()

    def wait_until_up(self, secs: float) -> bool:
        """Waits at most `secs` seconds for a channel; returns whether one is open."""
        return self._is_up.wait(secs)

    @property
    def unsent(self) -> int:
        """Number of messages that wait to be sent."""
        return len(self._outbox)

    def end(self, last_message: bytes | None = None) -> None:
        """Sends a last message and ends this half of the channel; opens no other one."""
        self._over, self._last_message = True, last_message
        self._end(self._outbox)

    def join(self, timeout_secs: float) -> None:
        """Waits until the ps has also ended its half."""
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
            self._read_channels()
        except Exception as error:  # otherwise the worker would wait forever
            unread = f"{self._name} sent a message that cannot be read: {error}"
            failed = f"this worker failed while it handled its link to {self._name}: {error!r}"
            why = unread if isinstance(error, FrameError) else failed
            self._outbox.cut()  # nothing is sent on a channel that nobody reads
            self._is_up.clear()
            self._events.on_break()  # otherwise its user could not count the ps as lost
            if self._events.on_loss(why):
                self._events.on_loss(why)  # this link cannot go on trying
            raise

    def _read_channels(self) -> None:
        """Reads one channel after another; the first may have to be opened."""
        channel, self._first = self._first, None  # so that it is freed when it has ended
        why = ""
        while channel or (channel := self._open_another(why)):
            outbox = self._outbox
            sender = threading.Thread(target=_send_all, args=(outbox, channel), daemon=True)
            try:
                sender.start()
                for message in channel:
                    self._events.on_message(message)
            finally:
                outbox.cut()
            if self._over:
                sender.join(self._timeout_secs)
                return
            self._is_up.clear()
            self.was_ended = (
                channel.ending is not None and channel.ending.end is not ChannelEnd.SILENT
            )
            why = why_ended(channel, self._name)
            if channel.changed:
                message = channel.changed.between(self._own_name, self._name)
                print(f"{message}; it is opened again.", flush=True)
            if channel.ending.end is ChannelEnd.REFUSED:
                self._events.on_message_refusal(why)
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
                if not self._events.on_loss(f"{why}; {error}" if why else str(error)):
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
    """How a worker reaches all ps. The simulation has another one, without threads and sockets."""

    def __init__(self, config: ConnectConfig, longest: int, rules: str = "") -> None:
        """Sends nothing yet; for the arguments see `ChannelOpener`."""
        self._config, self._longest, self._rules = config, longest, rules
        self._alive = KeepAlive()
        self._over = threading.Event()

    def open(
        self,
        ps: int,
        purpose: str,
        events: LinkEvents,
        *,
        waits: bool,
        was_there: bool = False,
    ) -> ChannelLink:
        """Opens a link to a ps, which may start later.

        Args:
          ps: index of the ps.
          purpose: of its channels; see `Hello`.
          events: calls to the user of the link.
          waits: whether to wait for a channel. Otherwise the started link opens it, and calls
            `on_open`.
          was_there: whether the ps was there before: the link then looks for it for `return_secs`
            only where nobody listens at its address.

        Raises:
          MembershipError: the ps cannot be reached or refuses this worker.
        """
        opener = ChannelOpener(self._config, purpose, ps, self._longest, self._rules)
        return_secs = self._config.return_secs
        broke, reached = threading.Event(), threading.Event()

        def open_channel() -> Channel:
            secs = return_secs if broke.is_set() else None
            refused_secs = return_secs if was_there else None
            broke.clear()  # later attempts have all the time that they need
            channel = opener.open(self._over, secs, refused_secs, was_there=reached.is_set())
            reached.set()
            broke.set()
            self._alive.add(channel)
            if self._over.is_set():
                channel.cut()
            return channel

        return ChannelLink(
            opener.name,
            open_channel,
            self._config.timeout_secs,
            events,
            own_name=self._config.name,
            waits=waits,
            nobody_listens=lambda: opener.nobody_listens,
        )

    def repeat(self, secs: float, call: Callable[[], None]) -> Callable[[], None]:
        """Makes a call every `secs` seconds; returns a function that ends this."""
        over = threading.Event()

        def run() -> None:
            while not over.wait(secs):
                call()

        threading.Thread(target=run, daemon=True).start()
        return over.set

    def close(self) -> None:
        """Cuts all open channels."""
        self._over.set()
        self._alive.cut()
        self._alive.stop()
