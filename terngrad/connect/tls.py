"""Sockets with TLS, and who may be at their other ends."""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from terngrad.connect.certificates import Certificate, RevokedCertificates, Tls, serial_of
from terngrad.ops.tls import Files

Result = TypeVar("Result")

FIRST_OCTET = b"\x16"  # of a connection with TLS
_OF_AUTHORITY = (18, 19, 20, 21)  # OpenSSL's error codes if another authority has signed
ALL_OR_NONE = "all processes need certificates, or none"

CONNECTION = "the connection from "  # prefix of errors that name both ends and blame neither
_BAD_MAC = "BAD_RECORD_MAC"
# Alerts of the other side, also after the handshake, about a record that has changed on the way.
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


class TlsContexts:
    """What encrypts the connections of a training, and which certificates were revoked.

    Attributes:
      files: for the native mesh.
      client: for connections that this process makes; demands a certificate.
      server: for those that it receives; likewise.
    """

    def __init__(self, tls: Tls) -> None:
        """Reads the files.

        Raises:
          OSError, ValueError: a file cannot be read or holds something else; see
            `certificates.check`.
        """
        self.files = Files(tls.ca, tls.cert, tls.key)
        self.client = _context(ssl.PROTOCOL_TLS_CLIENT, tls)
        self.server = _context(ssl.PROTOCOL_TLS_SERVER, tls)
        self.server.num_tickets = 0
        self._revoked = RevokedCertificates(tls.deny)

    def revocation(self, certificate: bytes) -> str:
        """Returns that a certificate, in DER, is revoked; "" if it is not."""
        serial = serial_of(certificate)
        revoked = serial in self._revoked
        return f"its certificate {serial:X} was revoked (--tls_deny)" if revoked else ""

    def refresh(self) -> bool:
        """Reads the revoked certificates again; see `RevokedCertificates.refresh`."""
        return self._revoked.refresh()


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

    @property
    def certificate(self) -> bytes:
        """Certificate of the other side, in DER; b"" before the handshake is done."""
        return self._tls.getpeercert(binary_form=True) or b""

    def objection(self, host: str) -> str:
        """Returns why the other side, whose handshake is done, is no process of `host`; "" = it is.

        It does not check whether its certificate is revoked.
        """
        shown = self._tls.getpeercert() or {}
        names = [
            name.strip()
            for kind, name in shown.get("subjectAltName", ())
            if kind in ("DNS", "IP Address")
        ]
        if Certificate(names, 0).is_for(host):
            return ""
        return f"its certificate is for {', '.join(sorted(set(names))) or 'no host'}, not {host}"

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

    def skip(self, size: int, flags: int = 0) -> bytes:
        """Returns received bytes without decrypting them, after TLS has failed."""
        return socket.socket.recv(self._tls, size, flags)

    def recv_into(self, view: memoryview, timeout_secs: float | None = None) -> int:
        """Likewise; TimeoutError after `timeout_secs`, if any, whatever `settimeout` says."""
        count = self._until_done(lambda: self._tls.recv_into(view), timeout_secs)
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

    def _until_done(self, act: Callable[[], Result], timeout_secs: float | None = None) -> Result:
        secs = self._timeout_secs if timeout_secs is None else timeout_secs
        end = None if secs is None else time.monotonic() + secs
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
            if secs == 0:
                raise BlockingIOError
            poll = select.poll()
            poll.register(self._tls, event)
            if not poll.poll(None if end is None else 1000 * max(0.0, end - time.monotonic())):
                raise TimeoutError("timed out")


def has_ended(connection: socket.socket | EncryptedSocket) -> bool:
    """Returns whether the other side has ended, and nothing of it is left to read."""
    look = connection.skip if isinstance(connection, EncryptedSocket) else connection.recv
    try:
        return not look(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _changed(error: ssl.SSLError, *, is_open: bool) -> ChangedError | None:
    """Returns an error that says that bytes have changed on the way; None if they have not."""
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


def _context(protocol: int, tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False  # `EncryptedSocket.objection` does, in both directions
    context.verify_mode = ssl.CERT_REQUIRED
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET
    context.load_verify_locations(tls.ca)
    context.load_cert_chain(tls.cert, tls.key)
    return context
