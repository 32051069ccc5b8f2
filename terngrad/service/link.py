"""A worker's stream to a ps, which is opened again when it breaks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import grpc

from terngrad.cluster.channel import MembershipError
from terngrad.service.calls import RefusedError, open_stream, ps_name, why_ended
from terngrad.service.messages import Hello
from terngrad.service.moved_stream import MovableCall
from terngrad.service.network import LinkEvents
from terngrad.service.streams import Outbox

_PAUSE_SECS = 2.0  # after a refusal by a ps that may be started again with other flags


class GrpcLink:
    """A `Link` over one channel, with one stream at a time."""

    def __init__(
        self,
        channel: grpc.Channel,
        method: str,
        introduction: Hello,
        timeout_secs: float,
        events: LinkEvents,
        connect: Callable[[MovableCall], None] = lambda call: None,
        *,
        waits: bool = True,
        secret: bytes = b"",
    ) -> None:
        """Opens the first stream; waits for a ps that does not listen yet.

        Args:
          channel: channel to the ps.
          method: name of a method of the service.
          introduction: hello of this worker.
          timeout_secs: time limit for opening a stream.
          events: calls to the user of this link.
          connect: moves a new stream to the data connection that its ps has offered, if it can.
          waits: see `Network.open`.
          secret: see `open_stream`.

        Raises:
          MembershipError: the ps refuses this worker, or cannot be reached in time.
        """
        self._open_stream = lambda: open_stream(channel, method, introduction, timeout_secs, secret)
        self._connect = connect
        self._name = ps_name(introduction.ps, introduction.ps_hosts)
        self._timeout_secs = timeout_secs
        self._events = events
        self._over, self._last_message = False, None
        self._is_up = threading.Event()
        call, self._outbox = self._open() if waits else (None, Outbox())
        if call:
            self._is_up.set()
        self._first = call
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

    def _open(self) -> tuple[MovableCall, Outbox]:
        call, outbox = self._open_stream()
        movable = MovableCall(call, outbox)
        self._connect(movable)
        return movable, outbox

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
        """Reads one stream after another; the first may have to be opened."""
        call, self._first = self._first, None  # a stream that has ended is kept nowhere
        why = ""
        while call or (call := self._open_another(why)):
            try:
                for message in call:
                    self._events.on_message(message)
            except grpc.RpcError:
                pass
            self._outbox.close()
            if self._over:
                return
            self._is_up.clear()
            why = why_ended(call, self._name)
            if call.code() == grpc.StatusCode.FAILED_PRECONDITION:
                self._events.on_refusal(why)
                return
            self._events.on_break()
            call = None

    def _open_another(self, why: str) -> MovableCall | None:
        """Opens a stream; None if the link ends. `why` tells how the last one ended, if any."""
        while not self._over:
            try:
                call, outbox = self._open()
            except RefusedError as error:
                if not self._events.on_refusal(str(error)):
                    return None
                time.sleep(_PAUSE_SECS)
                continue
            except MembershipError as error:
                late = f"{why}; it did not come back within {self._timeout_secs:g} s: {error}"
                if not self._events.on_loss(late if why else str(error)):
                    return None
                continue
            except ValueError:
                if self._over:  # the channel is closed
                    return None
                raise
            with self._events.lock:
                self._outbox = outbox
                self._events.on_open()
            if self._over:  # `end` may have used the outbox before
                self._end(outbox)
            self._is_up.set()
            return call
        return None
