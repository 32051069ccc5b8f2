"""Workers of a test's ps, and handmade clients of it, which send what no worker sends."""

import contextlib
import dataclasses
import socket
import ssl
from collections.abc import Iterable, Sequence

from terngrad.cluster.addresses import split_address
from terngrad.connect import introduction
from terngrad.connect.certificates import Tls
from terngrad.connect.channel import Channel, ChannelEnd, Ending
from terngrad.connect.config import ConnectConfig
from terngrad.connect.introduction import EXCHANGE, MAGIC, SIZE_BYTES, Hello, frame
from terngrad.connect.tls import EncryptedSocket, TlsContexts
from terngrad.service.messages import LONGEST_RESULT
from terngrad.testing.limits import HANG_SECS

WORKERS = ("one:1", "two:2")


def config_of(
    ps_hosts: Sequence[str],
    rank: int,
    timeout_secs: float = HANG_SECS,
    tls: Tls | None = None,
    workers: Sequence[str] = WORKERS,
    secret: bytes = b"",
) -> ConnectConfig:
    """Returns what one of WORKERS, or a ps, needs to connect."""
    return ConnectConfig(workers, rank, ps_hosts, timeout_secs, tls and TlsContexts(tls), secret)


def hello_of(host: str, worker: int = 1, purpose: str = EXCHANGE, **other: object) -> bytes:
    """Returns the hello of one of WORKERS to the only ps, with some fields changed."""
    hello = Hello(purpose, worker, 0, list(WORKERS), [host])
    return MAGIC + frame(dataclasses.asdict(hello) | other)


def connect(host: str, context: ssl.SSLContext | None = None) -> socket.socket | EncryptedSocket:
    """Connects to a ps and sends nothing."""
    connected = socket.create_connection(split_address(host), HANG_SECS)
    if not context:
        return connected
    encrypted = EncryptedSocket(connected, context)
    encrypted.handshake()
    return encrypted


def answer_in(connected: socket.socket | EncryptedSocket) -> dict:
    """Returns the next message of an introduction; empty if the connection has ended."""
    found = b""
    with contextlib.suppress(OSError):
        while more := connected.recv(1 << 16):
            found += more
            size = int.from_bytes(found[:SIZE_BYTES], "little")
            if len(found) >= SIZE_BYTES + size:
                break
    return introduction.read(found[SIZE_BYTES:])


def greeted(
    host: str, hello: bytes, context: ssl.SSLContext | None = None
) -> tuple[socket.socket | EncryptedSocket, dict]:
    """Returns a connection that has sent a hello, and the answer to it."""
    connected = connect(host, context)
    connected.sendall(hello)
    return connected, answer_in(connected)


def admitted(host: str, hello: bytes, context: ssl.SSLContext | None = None) -> Channel:
    """Returns the channel of a caller that a ps admits."""
    connected, answer = greeted(host, hello, context)
    assert "welcome" in answer, answer
    return Channel(connected, LONGEST_RESULT, 2 * HANG_SECS)


def call_ps(
    host: str,
    hello: bytes,
    context: ssl.SSLContext | None = None,
    messages: Iterable[bytes] = (),
) -> Ending:
    """Calls a ps and sends it messages; returns how the ps ends that."""
    connected, answer = greeted(host, hello, context)
    if "welcome" not in answer:
        connected.close()
        end = (
            ChannelEnd.CLOSED
            if answer.get("again")
            else ChannelEnd.REFUSED
            if answer
            else ChannelEnd.LOST
        )
        return Ending(end, answer.get("refused", ""))
    channel = Channel(connected, LONGEST_RESULT, 2 * HANG_SECS)
    with contextlib.suppress(OSError):  # it has refused an earlier one
        for message in messages:
            channel.send(message)
        channel.end()
    for _ in channel:
        pass
    return channel.ending
