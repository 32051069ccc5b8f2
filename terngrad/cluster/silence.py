"""Connections on which nothing arrives any more, such as through a router that forgot them."""

from __future__ import annotations

import socket

from terngrad.cluster.encrypted import EncryptedSocket

_PROBES = 4


def end_if_silent(connection: socket.socket | EncryptedSocket, timeout_secs: float) -> None:
    """Lets the system end a connection whose other side answers nothing, and waits without limit.

    It does so after twice the time-out, as a last resort: the processes watch each other, too.
    """
    connection.settimeout(None)
    secs = max(1, min(round(2 * timeout_secs), 10_000))
    options = {
        socket.TCP_KEEPIDLE: max(1, secs // _PROBES),
        socket.TCP_KEEPINTVL: max(1, secs // _PROBES),
        socket.TCP_KEEPCNT: _PROBES,
        socket.TCP_USER_TIMEOUT: 1000 * secs,
    }
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in options.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
