"""Encrypts a socket for the native mesh: cc/net/tls.h."""

from __future__ import annotations

import contextlib
import ctypes
import re
import socket
import ssl  # which also loads OpenSSL, where Python has it
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import NamedTuple

from terngrad.ops import library

_LIBRARIES = ("libssl.so.3", "libssl.so.1.1", "libssl.so")
_CERTIFICATE_BYTES = 1 << 16
ERROR_BYTES = 1000  # of a text that a native function writes
_POLL_SECS = 0.05


class Files(NamedTuple):
    """PEM files of a process: the authority's certificate, its own certificate, and its key."""

    ca: str
    cert: str
    key: str


class NativeTlsSocket:
    """A socket that is encrypted and whose other end is known.

    Attributes:
      certificate: of the other end, in DER.
    """

    def __init__(self, handle: int, certificate: bytes) -> None:
        self.certificate = certificate
        self._handle: int | None = handle

    def detach(self) -> int:
        """Returns what a mesh takes, which then owns the socket."""
        handle, self._handle = self._handle, None
        if handle is None:
            raise ValueError("this socket has another owner")
        return handle

    def close(self) -> None:
        """Closes the socket, unless it has another owner."""
        if self._handle is not None:
            library.load_functions().terngrad_tls_close(self.detach())


def encrypt(
    plain: socket.socket,
    files: Files,
    host: str,
    *,
    is_server: bool,
    timeout_secs: float,
    name: str = "",
    check: Callable[[], None] = lambda: None,
) -> NativeTlsSocket:
    """Makes the handshake of TLS 1.3, in which both sides show a certificate.

    Args:
      plain: a connected socket, which is used up.
      files: of this process.
      host: that the other side's certificate must name.
      is_server: whether this is the server's side; the other one has the client's.
      timeout_secs: how long it may take.
      name: of the connection, at most 255 bytes; the server's side fails if the other one has
        another name for it.
      check: called repeatedly; an error that it raises ends the handshake.

    Raises:
      ConnectionError: says why it failed.
      library.UnavailableError: see there.
    """
    handle, error = ctypes.c_void_p(), ctypes.create_string_buffer(ERROR_BYTES)
    certificate = ctypes.create_string_buffer(_CERTIFICATE_BYTES)
    shake = library.load_functions().terngrad_tls_open
    texts = ["\n".join(each).encode() for each in (_libraries(), files, [host], [name])]
    # In its own thread: this one receives signals, such as Ctrl-C, while it waits.
    with futures.ThreadPoolExecutor(1) as thread, plain.dup() as same:
        shaken = thread.submit(
            *(shake, plain.detach(), *texts, is_server, timeout_secs),
            *(ctypes.byref(handle), certificate, _CERTIFICATE_BYTES, error, ERROR_BYTES),
        )
        try:
            while not futures.wait([shaken], _POLL_SECS).done:
                check()
            size = shaken.result()
        except BaseException:
            with contextlib.suppress(OSError):  # the other side has gone
                same.shutdown(socket.SHUT_RDWR)  # ends the handshake
            if shaken.result() >= 0:  # it was done before
                NativeTlsSocket(handle.value, b"").close()
            raise
    if size < 0:
        raise ConnectionError(error.value.decode(errors="replace"))
    return NativeTlsSocket(handle.value, certificate.raw[:size])


def _libraries() -> list[str]:
    """Returns what may be OpenSSL: first what Python itself has loaded."""
    assert ssl.OPENSSL_VERSION_INFO
    loaded = re.findall(
        r"(/\S*/libssl\.so[.\d]*)$", Path("/proc/self/maps").read_text(), re.MULTILINE
    )
    return [*dict.fromkeys(loaded), *_LIBRARIES]
