"""Handmade callers of a ps, which send messages that no worker sends."""

import contextlib
from collections.abc import Iterable

import grpc

from terngrad.service.messages import HELLO_KEY, SERVICE, VERSION, Hello
from terngrad.service.streams import Outbox, identity
from terngrad.testing.limits import HANG_SECS

WORKERS = ("one:1", "two:2")


def hello_of(host: str, worker: int = 1, **other: object) -> bytes:
    """Returns the hello of one of WORKERS to the only ps, with some fields changed."""
    fields = {"version": VERSION, "worker": worker, "ps": 0, "ps_hosts": [host]}
    return Hello(**fields | {"worker_hosts": WORKERS} | other).SerializeToString()


def stranger(
    host: str,
    hello: bytes | None = None,
    method: str = "Exchange",
    credentials: grpc.ChannelCredentials | None = None,
    messages: Iterable[bytes] = (),
) -> tuple[grpc.StatusCode, str]:
    """Calls a ps and sends it messages.

    Returns:
      Status and details with which the ps ends the call.
    """
    make = grpc.secure_channel if credentials else grpc.insecure_channel
    with make(host, *([credentials] if credentials else [])) as channel:
        outbox = Outbox()
        for message in messages:
            outbox.put(message)
        metadata = [(HELLO_KEY, hello)] if hello is not None else []
        stream = channel.stream_stream(f"/{SERVICE}/{method}", identity, identity)
        call = stream(iter(outbox), metadata=metadata, timeout=HANG_SECS)
        with contextlib.suppress(grpc.RpcError):
            for _ in call:
                pass
        outbox.close()
        return call.code(), call.details()
