"""How a worker that ends before it has joined tells a ps why."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence

import grpc

from terngrad.cluster.channel import MembershipError
from terngrad.service.calls import open_channel, open_stream
from terngrad.service.messages import Hello
from terngrad.service.security import Tls

LONGEST_REASON = 1000  # characters
_END_SECS = 5.0  # in which the ps reads it


def send(
    introduction: Hello,
    method: str,
    messages: Sequence[bytes],
    timeout_secs: float,
    tls: Tls | None,
    secret: bytes,
) -> None:
    """Sends messages over a stream of their own; waits until the ps has read them.

    A ps that cannot be reached, or refuses this worker, does not learn them.

    Args:
      introduction: of this worker to the ps.
      method: of the stream.
      messages: the only ones of this stream.
      timeout_secs: how long the ps may be away.
      tls: certificates; None = plain text.
      secret: see `open_stream`.
    """
    address = introduction.ps_hosts[introduction.ps]
    with (
        contextlib.suppress(MembershipError, OSError),
        open_channel(address, tls, timeout_secs) as channel,
    ):
        call, outbox = open_stream(channel, method, introduction, timeout_secs, secret)
        for message in messages:
            outbox.put(message)
        outbox.close()
        timer = threading.Timer(_END_SECS, call.cancel)
        timer.daemon = True
        timer.start()
        with contextlib.suppress(grpc.RpcError):
            for _ in call:
                pass
        timer.cancel()
