"""How a worker opens its streams to a ps, which may start later, and why they end."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import grpc

from terngrad.cluster import run_secret
from terngrad.cluster.channel import MembershipError
from terngrad.service import proofs
from terngrad.service.messages import SERVICE, Hello
from terngrad.service.security import Tls
from terngrad.service.streams import UNKEPT, WELCOME, Outbox, channel_options, identity, metadata

_FIRST_PAUSE_SECS, _LONGEST_PAUSE_SECS = 0.2, 2.0
_FATAL = (
    grpc.StatusCode.FAILED_PRECONDITION,  # how a ps refuses
    grpc.StatusCode.UNIMPLEMENTED,  # something else listens there, or a ps of the other kind
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
)

_MUTE = "it accepts connections but does not answer"

# Why a stream ended, by status code; with other codes the ps is lost.
_ENDINGS = {
    grpc.StatusCode.OK: "{name} ended before this worker",
    grpc.StatusCode.FAILED_PRECONDITION: "{name} refused this worker: {details}",
    grpc.StatusCode.UNIMPLEMENTED: (
        "{name} was started with another --cross_replica_sync than this worker"
    ),
    grpc.StatusCode.ALREADY_EXISTS: "{name} does not accept this worker yet: {details}",
    grpc.StatusCode.ABORTED: "{name} ended this worker's stream: {details}",
    UNKEPT: "{name} cannot apply gradients now: {details}",
    # gRPC's own: too many streams, or a message that is too long.
    grpc.StatusCode.RESOURCE_EXHAUSTED: "{name} has no room for this worker: {details}",
    grpc.StatusCode.CANCELLED: "{name} ended this worker's stream",
}


def ps_name(ps: int, ps_hosts: Sequence[str]) -> str:
    """Returns the name of a ps for messages."""
    return f"ps {ps} ({ps_hosts[ps]})"


def open_channel(address: str, tls: Tls | None, timeout_secs: float) -> grpc.Channel:
    """Opens a channel to "host:port"; sends nothing yet."""
    options = channel_options(timeout_secs)
    if tls:
        return grpc.secure_channel(address, tls.channel_credentials(), options)
    return grpc.insecure_channel(address, options)


class RefusedError(MembershipError):
    """A ps refuses this worker for good."""


class AwayError(Exception):
    """A ps cannot be reached or ended a stream; another attempt may succeed."""


class Search:
    """The attempts to reach a ps: how long they continue, and the pauses between them.

    Attributes:
      was_there: whether the ps was reached before.
    """

    def __init__(self, name: str, timeout_secs: float, *, was_there: bool = False) -> None:
        """Starts the search now.

        Args:
          name: name of the ps, for messages.
          timeout_secs: time after which the search ends.
          was_there: whether the ps was reached before, for messages.
        """
        self._until = time.monotonic() + timeout_secs
        self._name, self._within = name, f"within {timeout_secs:g} s"
        self.was_there = was_there
        self._next_secs = _FIRST_PAUSE_SECS

    @property
    def left_secs(self) -> float:
        """Time after which the search ends; at least a short one for the last attempt."""
        return max(_FIRST_PAUSE_SECS, self._until - time.monotonic())

    def hurry(self, secs: float) -> None:
        """Ends the search in at most `secs` seconds, because this worker must end."""
        self._until = min(self._until, time.monotonic() + secs)
        self._within = "before this worker had to end"

    def pause_secs(self, error: AwayError) -> float:
        """Returns the pause before the next attempt, after one that failed with `error`.

        Raises:
          MembershipError: the time is over.
        """
        if time.monotonic() > self._until:
            what = "did not come back" if self.was_there else "cannot be reached"
            raise MembershipError(f"{self._name} {what} {self._within}: {error}") from None
        secs, self._next_secs = self._next_secs, min(2 * self._next_secs, _LONGEST_PAUSE_SECS)
        return secs


def try_stream(
    channel: grpc.Channel,
    method: str,
    introduction: Hello,
    timeout_secs: float,
    secret: bytes = b"",
) -> tuple[grpc.Call, Outbox]:
    """Makes one attempt to open a stream; see `open_stream`.

    Raises:
      AwayError: the ps cannot be reached now, or does not answer in time.
      RefusedError: the ps refuses this worker; the message says why.
    """
    if secret:
        introduction = _proven(channel, introduction, timeout_secs, secret)
    outbox = Outbox()
    make = channel.stream_stream(f"/{SERVICE}/{method}", identity, identity)
    call = make(iter(outbox), metadata=metadata(introduction))
    # A ps that hangs may still answer keep-alives, which are gRPC's own.
    timer = threading.Timer(timeout_secs, call.cancel)
    timer.daemon = True
    timer.start()
    try:
        answer = [tuple(pair) for pair in call.initial_metadata() or ()]
    finally:
        timer.cancel()
    if WELCOME[0] in answer:
        return call, outbox
    outbox.close()
    if call.code() is grpc.StatusCode.CANCELLED:
        raise AwayError(_MUTE)
    if call.code() in _FATAL:
        raise RefusedError(why_ended(call, ps_name(introduction.ps, introduction.ps_hosts)))
    raise AwayError(_details(call))


def _proven(
    channel: grpc.Channel, introduction: Hello, timeout_secs: float, secret: bytes
) -> Hello:
    """Returns the introduction with a proof of the secret, for one stream."""
    name = ps_name(introduction.ps, introduction.ps_hosts)
    ask, asked = channel.unary_unary(f"/{SERVICE}/Prove", identity, identity), proofs.request()
    try:
        answer = ask(asked.SerializeToString(), timeout=timeout_secs)
    except grpc.RpcError as error:
        if error.code() in _FATAL:
            raise RefusedError(why_ended(error, name)) from None
        is_mute = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        raise AwayError(_MUTE if is_mute else _details(error)) from None
    if (found := proofs.proven(introduction, secret, asked, answer)) is None:
        raise RefusedError(f"{name}: {run_secret.DIFFERENT}")
    return found


def open_stream(
    channel: grpc.Channel,
    method: str,
    introduction: Hello,
    timeout_secs: float,
    secret: bytes = b"",
) -> tuple[grpc.Call, Outbox]:
    """Opens a stream; waits for a ps that does not listen yet.

    Args:
      channel: to the ps.
      method: of the service.
      introduction: of this worker.
      timeout_secs: how long to wait.
      secret: that the ps must show, and this worker shows; b"" = none.

    Returns:
      The messages from the ps, and the outbox for messages to it.

    Raises:
      RefusedError: the ps refuses this worker; the message says why.
      MembershipError: the ps cannot be reached in time.
    """
    search = Search(ps_name(introduction.ps, introduction.ps_hosts), timeout_secs)
    while True:
        try:
            return try_stream(channel, method, introduction, search.left_secs, secret)
        except AwayError as error:
            pause_secs = search.pause_secs(error)
        time.sleep(pause_secs)


def why_ended(call: grpc.Call, name: str) -> str:
    """Says in one line why a stream to a ps ended."""
    details = _details(call)
    if (text := _ENDINGS.get(call.code())) is None:
        is_silent = any(word in details.lower() for word in ("keepalive", "ping timeout"))
        lost = "no longer answers" if is_silent else "died or cannot be reached"
        text = f"{{name}} {lost}: {{details}}"
    return text.format(name=name, details=details)


def _details(call: grpc.Call) -> str:
    return " ".join((call.details() or call.code().name).split())
