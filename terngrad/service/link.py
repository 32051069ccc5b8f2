"""A worker's stream to a ps that is opened again when it breaks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import grpc

from terngrad.cluster.channel import MembershipError
from terngrad.service.calls import RefusedError, open_stream, ps_name, why_ended
from terngrad.service.messages import Hello


class Link:
    """One stream at a time, over one channel.

    What is sent while there is none is lost: who uses a link says anew, when it is open again,
    what the ps has to know.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        method: str,
        introduction: Hello,
        timeout_secs: float,
        *,
        lock: AbstractContextManager,
        on_message: Callable[[bytes], None],
        on_break: Callable[[], None],
        on_open: Callable[[], None],
        on_loss: Callable[[str], None],
        on_refusal: Callable[[str], None],
    ) -> None:
        """Opens the first stream; waits for a ps that does not listen yet.

        Args:
          channel: to the ps.
          method: of the service.
          introduction: of this worker.
          timeout_secs: to open a stream in.
          lock: its user's; held while another stream takes the place of one that broke, so that
            nothing is sent before what `on_open` says.
          on_message: takes what comes; it and the others are called from one thread.
          on_break: called when a stream broke.
          on_open: called when another one is open.
          on_loss: called, instead of that, with the reason for which there is none.
          on_refusal: the same, where the ps said the reason.

        Raises:
          MembershipError: the ps refuses this worker, or cannot be reached in time.
        """
        self._open = lambda: open_stream(channel, method, introduction, timeout_secs)
        self._name = ps_name(introduction.ps, introduction.ps_hosts)
        self._timeout_secs = timeout_secs
        self._lock = lock
        self._on_message, self._on_break = on_message, on_break
        self._on_open, self._on_loss, self._on_refusal = on_open, on_loss, on_refusal
        self._over = False
        self._is_up = threading.Event()
        call, self._outbox = self._open()
        self._is_up.set()
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)

    def start(self) -> None:
        """Begins to read."""
        self._thread.start()

    def send(self, message: bytes) -> None:
        """Sends, if a stream is open; never waits."""
        self._outbox.put(message)

    @property
    def is_up(self) -> bool:
        """Whether a stream is open."""
        return self._is_up.is_set()

    def wait_until_up(self, secs: float) -> bool:
        """Waits so long for a stream; returns whether one is open."""
        return self._is_up.wait(secs)

    @property
    def unsent(self) -> int:
        """Messages that wait to be sent."""
        return len(self._outbox)

    def end(self, last_message: bytes | None = None) -> None:
        """Ends this half of the stream after what was sent and this; opens no other stream."""
        self._over = True
        if last_message is not None:
            self._outbox.put(last_message)
        self._outbox.close()

    def join(self, timeout_secs: float) -> None:
        """Waits until the ps has ended its half, too."""
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_secs)

    def _run(self, call: grpc.Call) -> None:
        try:
            self._follow(call)
        except Exception as error:  # nobody else would notice that nothing is read any more
            self._on_loss(f"{self._name}: what came cannot be taken: {error!r}")
            raise

    def _follow(self, call: grpc.Call) -> None:
        """Reads one stream after the other."""
        while True:
            try:
                for message in call:
                    self._on_message(message)
            except grpc.RpcError:
                pass
            self._outbox.close()
            if self._over:
                return
            self._is_up.clear()
            why = why_ended(call, self._name)
            if call.code() == grpc.StatusCode.FAILED_PRECONDITION:
                self._on_refusal(why)
                return
            self._on_break()
            try:
                call, outbox = self._open()
            except RefusedError as error:
                self._on_refusal(str(error))
                return
            except MembershipError as error:
                self._on_loss(
                    f"{why}; it did not come back within {self._timeout_secs:g} s: {error}"
                )
                return
            except ValueError:
                if self._over:  # the channel is closed
                    return
                raise
            with self._lock:
                self._outbox = outbox
                self._on_open()
            self._is_up.set()
