"""Sockets with TLS for the messages of `channel`, and who may be at their other ends."""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

Result = TypeVar("Result")

FIRST_OCTET = b"\x16"  # of a connection with TLS
_OF_AUTHORITY = (18, 19, 20, 21)  # OpenSSL's errors where another authority has signed
ALL_OR_NONE = "all processes need certificates, or none"

CONNECTION = "the connection from "  # begins what names both ends of one, and blames neither
_BAD_MAC = "BAD_RECORD_MAC"
# What the other side says after the handshake, too, of a record that has changed on the way to it.
_RECORD_ALERTS = ("RECORD_OVERFLOW", "UNEXPECTED_MESSAGE", "DECODE_ERROR", "PROTOCOL_VERSION")
_PLAIN = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")


class EncryptionError(ConnectionError):
    """Says what is wrong with the other side; trying again would not help."""


class ChangedError(EncryptionError):
    """Bytes have changed on the way between two processes; neither of them is to blame.

    Attributes:
      is_to_here: whether on the way to this process; else the other side has said so.
    """

    def __init__(self, text: str, *, is_to_here: bool) -> None:
        super().__init__(text)
        self.is_to_here = is_to_here

    def between(self, here: str, there: str) -> str:
        """Names the connection; the mesh (cc/net/mesh.cc) has the same text."""
        ends = (there, here) if self.is_to_here else (here, there)
        return f"{CONNECTION}{ends[0]} to {ends[1]}: bytes have changed on the way ({self})"


class Encryption(Protocol):
    """What encrypts a training's connections, and says who belongs to it.

    Attributes:
      client: for connections that this process makes; demands a certificate.
      server: for those that it receives; likewise.
    """

    client: ssl.SSLContext
    server: ssl.SSLContext

    def objection(self, certificate: bytes, names: frozenset[str], host: str) -> str:
        """Returns what is wrong with a valid certificate; "" if nothing is.

        Args:
          certificate: in DER.
          names: hosts and addresses for which it is valid.
          host: whose process has shown it.
        """


class EncryptedSocket:
    """A connected socket with TLS that one thread may read while others send.

    Those of `ssl` must not be used by two threads at once.
    """

    def __init__(
        self, plain: socket.socket, context: ssl.SSLContext, *, server_side: bool = False
    ) -> None:
        """Takes ownership of a connected socket. The handshake is part of the first use."""
        self._timeout_secs = plain.gettimeout()
        plain.setblocking(False)
        self._tls = context.wrap_socket(
            plain, server_side=server_side, do_handshake_on_connect=False
        )
        self._using = threading.Lock()
        self._is_open = False  # bytes have arrived, so the handshake is done

    def handshake(self) -> None:
        """Makes the handshake.

        Raises:
          EncryptionError: the other side is not what it should be.
          OSError: it does not answer in time, or has gone.
        """
        self._until_done(self._tls.do_handshake)

    def objection(self, encryption: Encryption, host: str) -> str:
        """Returns why the other side, whose handshake is done, is not a process of `host`."""
        shown = self._tls.getpeercert() or {}
        names = frozenset(
            name.strip()
            for kind, name in shown.get("subjectAltName", ())
            if kind in ("DNS", "IP Address")
        )
        return encryption.objection(self._tls.getpeercert(binary_form=True) or b"", names, host)

    def fileno(self) -> int:
        """See socket.socket, as for the other methods."""
        return self._tls.fileno()

    def settimeout(self, secs: float | None) -> None:
        """None = waits; 0 = BlockingIOError instead of a wait."""
        self._timeout_secs = secs

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """See socket.socket."""
        self._tls.setsockopt(level, option, value)

    def recv(self, size: int) -> bytes:
        """Also raises EncryptionError, which says why the other side does not belong here."""
        data = self._until_done(lambda: self._tls.recv(size))
        self._is_open = True
        return data

    def recv_into(self, view: memoryview) -> int:
        """Likewise."""
        count = self._until_done(lambda: self._tls.recv_into(view))
        self._is_open = True
        return count

    def sendall(self, data: bytes) -> None:
        """One thread at a time may call it."""
        left = memoryview(data)
        while left:
            left = left[self._until_done(lambda view=left: self._tls.send(view)) :]

    def shutdown(self, how: int) -> None:
        """Ends the connection without TLS's own notice: messages say when they are the last."""
        socket.socket.shutdown(self._tls, how)

    def close(self) -> None:
        """Closes the connection."""
        self._tls.close()

    def _until_done(self, act: Callable[[], Result]) -> Result:
        end = None if self._timeout_secs is None else time.monotonic() + self._timeout_secs
        while True:
            with self._using:
                try:
                    return act()
                except ssl.SSLWantReadError:
                    event = select.POLLIN
                except ssl.SSLWantWriteError:
                    event = select.POLLOUT
                except ssl.SSLError as error:
                    if changed := _changed(error, is_open=self._is_open):
                        raise changed from None
                    if text := _fault(error):
                        raise EncryptionError(text) from None
                    raise ConnectionAbortedError("it left during the TLS handshake") from None
            if self._timeout_secs == 0:
                raise BlockingIOError
            poll = select.poll()
            poll.register(self._tls, event)
            if not poll.poll(None if end is None else 1000 * max(0.0, end - time.monotonic())):
                raise TimeoutError("timed out")


def _changed(error: ssl.SSLError, *, is_open: bool) -> ChangedError | None:
    """Returns what says that bytes have changed on the way; None if something else is wrong."""
    reason = error.reason or ""
    if not reason or isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return None
    text = f"TLS: {reason.lower().replace('_', ' ')}"
    is_alert = "ALERT" in reason
    # After the handshake there is no other reason for a record that is not right.
    is_wrong = not is_alert or any(words in reason for words in _RECORD_ALERTS)
    if _BAD_MAC in reason or (is_open and is_wrong):
        return ChangedError(text, is_to_here=not is_alert)
    return None


def _fault(error: ssl.SSLError) -> str:
    """Returns what is wrong with the other side; "" if it only left."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _OF_AUTHORITY:
            return (
                f"this training's authority has not signed its certificate: {error.verify_message}"
            )
        return f"its certificate is not valid: {error.verify_message}"
    reason = error.reason or ""
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)) or not reason:
        return ""
    if reason in _PLAIN:
        return f"it does not use TLS: {ALL_OR_NONE}"
    words = reason.lower().replace("_", " ")
    if "ALERT" in reason:
        return f"it refuses the certificate of this process: {words.rpartition('alert ')[2]}"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "it shows no certificate"
    return f"TLS failed: {words}"
