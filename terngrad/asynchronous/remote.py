"""A worker's calls to one ps, repeated after a lost ps is back."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping

from terngrad.asynchronous.messages import ENTER, PULL, PUSH, collect, entry, frames, sizes_text
from terngrad.cluster.errors import MembershipError
from terngrad.connect.calling import ChannelOpener, PsUnreachableError, Search, why_ended
from terngrad.connect.channel import Channel, ChannelEnd, FrameError, KeepAlive
from terngrad.connect.config import ConnectConfig
from terngrad.service.messages import LONGEST_RESULT, Call, Reply, split_frame

_STOP_SECS = 5.0  # how long a worker that was asked to end waits for a ps
_LEAVE_SECS = 2.0
_UNAVAILABLE_PAUSE_SECS = 1.0


class _UnavailableError(PsUnreachableError):
    """A ps cannot apply a gradient now, because no snapshot can be written."""


class RemotePs:
    """Calls to one ps, one at a time.

    Attributes:
      run: run of the ps at its last reply; "" for none.
    """

    def __init__(
        self,
        config: ConnectConfig,
        ps: int,
        incarnation: int,
        configuration: Mapping[str, str],
        log: Callable[[str], None],
        stopped: Callable[[], bool],
        alive: KeepAlive,
    ) -> None:
        """Sends nothing yet.

        Args:
          config: of this worker; the ps may be away for its time-out.
          ps: index of the ps to call.
          incarnation: number of this process; not 0.
          configuration: settings that must be equal on all workers.
          log: called with a line when the ps is lost, and when it is back.
          stopped: whether this worker was asked to end; it then soon gives up a ps that is away.
          alive: keeps the channel alive between calls.
        """
        self.run = ""
        self._opener = ChannelOpener(config, "Update", ps, LONGEST_RESULT)
        self._name, self._alive = self._opener.name, alive
        self._incarnation, self._configuration = incarnation, dict(configuration)
        self._timeout_secs = config.timeout_secs
        self._log, self._stopped = log, stopped
        self._channel: Channel | None = None
        self._channel_was_open = self._was_there = False
        self._why_unavailable = ""  # the last such reason that was logged
        self._received_at: float | None = None  # last sign of the ps in a call; None between calls
        self._using, self._closed = threading.Lock(), threading.Event()

    def call(
        self,
        call: Call,
        content: bytes | memoryview = b"",
        sizes: Collection[range] = (),
        again: Callable[[Reply], Call | None] = lambda reply: None,
    ) -> tuple[Reply, bytearray]:
        """Calls, and waits for the reply.

        Args:
          call: see terngrad/asynchronous/messages.py.
          content: content of the call.
          sizes: bytes that the reply's content may have, if it has any.
          again: called with the reply to ENTER when a lost ps is back; returns another call without
            content to make instead, or None to repeat this one.

        Raises:
          MembershipError: the ps refuses this worker, or is away for too long.
        """
        with self._using:
            return self._call(call, content, sizes, again)

    def enter(self) -> Reply:
        """Sends the ps the run of this worker again; returns the reply with that run's status."""
        reply, _ = self.call(self._entry(), entry(self.run, self._configuration))
        return reply

    def leave(self, call: Call) -> None:
        """Makes a last call if the ps listens and no other call is under way; ends the channel."""
        if not self._using.acquire(timeout=_LEAVE_SECS):
            return
        try:
            if self._channel:
                self._exchange(call, b"", ())
                self._drop()
        except (PsUnreachableError, MembershipError, FrameError):
            pass  # this worker ends anyway
        finally:
            self._using.release()

    def cut_silent_call(self) -> None:
        """Gives up a call in which a ps has been silent for 5 s, as this worker must end."""
        received_at, channel = self._received_at, self._channel
        if channel and received_at is not None and time.monotonic() > received_at + _STOP_SECS:
            channel.cut()

    def close(self) -> None:
        """Ends the channel, and any search by another thread."""
        self._closed.set()
        if channel := self._channel:
            channel.cut()

    def _call(
        self,
        call: Call,
        content: bytes | memoryview,
        sizes: Collection[range],
        again: Callable[[Reply], Call | None],
    ) -> tuple[Reply, bytearray]:
        search: Search | None = None
        is_repeated = False
        while True:
            try:
                entered = None
                if self._channel is None:
                    entered = self._enter(search.left_secs if search else self._timeout_secs)
                    instead = again(entered) if is_repeated and self._was_there else None
                    self._was_there = True
                    if instead is not None:
                        call, content = instead, b""
                if entered is not None and call.act == ENTER:
                    found = entered, bytearray()
                else:
                    found = self._exchange(call, content, sizes)
                if search and search.was_there:  # only now: the call may fail on a new channel
                    self._log(f"{self._name} is back.")
                return found
            except _UnavailableError as error:  # the ps is there, so this is no search
                search, pause_secs = None, _UNAVAILABLE_PAUSE_SECS
                if self._stopped():  # it ends without this gradient
                    call, content = Call(act=PULL), b""
                if str(error) != self._why_unavailable:
                    self._log(f"{error}; tries again until it can.")
                self._why_unavailable = str(error)
            except PsUnreachableError as error:
                search = search or self._begin_search(error)
                if self._stopped():
                    search.shorten(_STOP_SECS)
                    if call.act == PUSH:
                        call, content = Call(act=PULL), b""
                pause_secs = search.pause_secs(error)
            is_repeated = True
            if self._closed.wait(pause_secs):
                raise self._unused()

    def _begin_search(self, error: PsUnreachableError) -> Search:
        if self._channel_was_open:
            self._log(f"{error}; trying to reach it again for {self._timeout_secs:g} s.")
        return Search(self._name, self._timeout_secs, was_there=self._was_there)

    def _enter(self, timeout_secs: float) -> Reply:
        self._channel = self._opener.try_once(timeout_secs)
        self._alive.add(self._channel)
        if self._closed.is_set():  # another thread closed it meanwhile
            self._channel.cut()
            raise self._unused()
        self._channel_was_open = True
        return self._exchange(self._entry(), entry(self.run, self._configuration), ())[0]

    def _entry(self) -> Call:
        return Call(act=ENTER, incarnation=self._incarnation)

    def _exchange(
        self, call: Call, content: bytes | memoryview, sizes: Collection[range]
    ) -> tuple[Reply, bytearray]:
        channel = self._channel
        self._received_at = time.monotonic()
        try:
            with contextlib.suppress(OSError):  # reading tells why
                for frame in frames(call, content):
                    channel.send(frame)
            messages = self._noting(channel)
            message = next(messages, None)
            if message is None:
                raise self._lost()
            reply, first = split_frame(message, Reply)
            if reply.size and not any(reply.size in own for own in sizes):  # before it is allocated
                self._drop()
                text = f"{self._name} sent {reply.size} bytes; allowed are {sizes_text(sizes)}"
                raise MembershipError(text)
            return reply, collect(reply, first, messages)
        except FrameError:
            if channel.ending:  # within a reply
                raise self._lost() from None
            raise
        finally:
            self._received_at = None

    def _noting(self, channel: Channel) -> Iterator[memoryview]:
        for message in channel:
            self._received_at = time.monotonic()
            yield message

    def _lost(self) -> Exception:
        """Returns the error of a channel that has ended; the next call opens another."""
        channel = self._channel
        self._drop()
        text = why_ended(channel, self._name)
        end = channel.ending.end if channel.ending else ChannelEnd.CLOSED
        if end is ChannelEnd.REFUSED:
            return MembershipError(text)
        return (
            _UnavailableError(text) if end is ChannelEnd.UNAVAILABLE else PsUnreachableError(text)
        )

    def _unused(self) -> MembershipError:
        return MembershipError(f"{self._name} is not called any more: this worker ends")

    def _drop(self) -> None:
        self._channel.cut()
        self._channel = None
