"""Connections on which nothing arrives any more, such as through a router that forgot them."""

from __future__ import annotations

import socket

from terngrad.connect.tls import EncryptedSocket

_PROBES = 4


def end_if_silent(connection: socket.socket | EncryptedSocket, secs: float) -> None:
    """Lets the system end a connection whose other side has answered nothing for so long.

    Systems other than Linux lack some of the options, and end it later.
    """
    whole = max(1, min(round(secs), 20_000))
    options = {
        "TCP_KEEPIDLE": max(1, whole // _PROBES),
        "TCP_KEEPINTVL": max(1, whole // _PROBES),
        "TCP_KEEPCNT": _PROBES,
        "TCP_USER_TIMEOUT": 1000 * whole,
    }
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in options.items():
        if (option := getattr(socket, name, None)) is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
