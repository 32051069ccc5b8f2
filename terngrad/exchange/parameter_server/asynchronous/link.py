"""A worker's stream to one ps: calls are made again after the ps was lost and found again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence

import grpc

from terngrad.exchange.channel import MembershipError
from terngrad.exchange.parameter_server.asynchronous.caller import ENTER
from terngrad.exchange.parameter_server.asynchronous.framing import collect, frames
from terngrad.exchange.parameter_server.calls import open_channel, open_stream, ps_name, why_ended
from terngrad.exchange.parameter_server.messages import Call, Reply, split_frame
from terngrad.exchange.parameter_server.security import Tls
from terngrad.exchange.parameter_server.streams import Outbox, hello

_FINAL = (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNIMPLEMENTED)
_FIRST_PAUSE_SECS, _LONGEST_PAUSE_SECS = 0.2, 2.0


class LostError(Exception):
    """A stream ended; the ps may be found again."""


class Link:
    """Calls to one ps. Not for several threads at once.

    Attributes:
      run: whose parameters the ps held when it was last heard of; "" for none.
      bytes_sent, bytes_received: in frames, since the start.
    """

    def __init__(
        self,
        ps: int,
        ps_hosts: Sequence[str],
        worker_hosts: Sequence[str],
        rank: int,
        incarnation: int,
        timeout_secs: float,
        tls: Tls | None,
        facts: Mapping[str, str],
        tell: Callable[[str], None],
    ) -> None:
        """Nothing is sent yet.

        Args:
          ps: index of whom to call.
          ps_hosts: of all ps.
          worker_hosts: of all workers.
          rank: of this worker.
          incarnation: of this process; not 0.
          timeout_secs: how long the ps may be away.
          tls: None = plain text.
          facts: what all workers must have in common.
          tell: called with a line when the ps is lost, and when it is found again.
        """
        self.run = ""
        self.bytes_sent = self.bytes_received = 0
        self._name = ps_name(ps, ps_hosts)
        self._introduction = hello(rank, ps, ps_hosts, worker_hosts)
        self._channel = open_channel(ps_hosts[ps], tls, timeout_secs)
        self._incarnation, self._facts = incarnation, dict(facts)
        self._timeout_secs = timeout_secs
        self._tell = tell
        self._stream: tuple[grpc.Call, Outbox] | None = None

    def call(
        self,
        call: Call,
        content: bytes | memoryview = b"",
        again: Callable[[Reply], Call | None] = lambda reply: None,
    ) -> tuple[Reply, bytearray]:
        """Calls, and waits for the reply.

        Args:
          call: see service.proto.
          content: of it.
          again: after the ps was lost and found, gets its reply to ENTER and returns the call to
            make instead, without content; None = the same one again.

        Raises:
          MembershipError: the ps refuses this worker, or is away for too long.
        """
        deadline, pause = None, _FIRST_PAUSE_SECS
        while True:
            try:
                entered = self._enter() if self._stream is None else None
                if entered is not None and deadline is not None:
                    self._tell(f"{self._name} is found again.")
                    if (instead := again(entered)) is not None:
                        call, content = instead, b""
                return self._exchange(call, content)
            except LostError as error:
                now = time.monotonic()
                if deadline is None:
                    deadline = now + self._timeout_secs
                    self._tell(f"{error}; it is looked for, for {self._timeout_secs:g} s.")
                if now > deadline:
                    why = f"{self._name} was not found again within {self._timeout_secs:g} s"
                    raise MembershipError(f"{why}: {error}") from None
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECS)

    def enter(self) -> Reply:
        """Tells the ps again which run this worker is in, and hears where the ps stands."""
        reply, _ = self.call(self._entry(), self._said())
        return reply

    def close(self) -> None:
        """Ends the stream."""
        if self._stream:
            self._stream[1].close()
            self._stream[0].cancel()
        self._channel.close()

    def _enter(self) -> Reply:
        self._stream = open_stream(self._channel, "Update", self._introduction, self._timeout_secs)
        return self._exchange(self._entry(), self._said())[0]

    def _entry(self) -> Call:
        return Call(act=ENTER, incarnation=self._incarnation)

    def _said(self) -> bytes:
        return json.dumps({"run": self.run, "facts": self._facts}).encode()

    def _exchange(self, call: Call, content: bytes | memoryview) -> tuple[Reply, bytearray]:
        stream, outbox = self._stream
        for frame in frames(call, content):
            self.bytes_sent += len(frame)
            outbox.put(frame)
        try:
            message = next(stream, None)
            if message is None:
                raise self._lost()
            reply, first = split_frame(message, Reply)
            count = [len(message)]
            found = collect(reply, first, stream, count)
        except grpc.RpcError:
            raise self._lost() from None
        self.bytes_received += count[0]
        return reply, found

    def _lost(self) -> Exception:
        """The error of a stream that has ended; the next call opens another."""
        (stream, outbox), self._stream = self._stream, None
        outbox.close()
        text = why_ended(stream, self._name)
        return MembershipError(text) if stream.code() in _FINAL else LostError(text)
