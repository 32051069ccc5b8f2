"""Who belongs to a training without parameter servers, by the certificates of `security`."""

from __future__ import annotations

import ssl

from terngrad.ops.tls import Files
from terngrad.service.security import Certificate, Tls, Withdrawn, serial_of


class Members:
    """An `Encryption` of all connections, by a training's certificates."""

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
        self._withdrawn = Withdrawn(tls.deny)

    def objection(self, certificate: bytes, names: frozenset[str], host: str) -> str:
        """Returns why a certificate's holder is no process of a host; see `Encryption`."""
        if not Certificate(names, serial_of(certificate)).is_for(host):
            return f"its certificate is for {', '.join(sorted(names)) or 'no host'}, not {host}"
        return self.withdrawal(certificate)

    def withdrawal(self, certificate: bytes) -> str:
        """Returns that a certificate, in DER, is withdrawn; "" if it is not."""
        serial = serial_of(certificate)
        return f"its certificate, {serial:X}, is withdrawn" if serial in self._withdrawn else ""


def _context(protocol: int, tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False  # `objection` does, in both directions
    context.verify_mode = ssl.CERT_REQUIRED
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET
    context.load_verify_locations(tls.ca)
    context.load_cert_chain(tls.cert, tls.key)
    return context
