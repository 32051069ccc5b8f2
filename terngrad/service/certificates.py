"""Says what is wrong with the certificates of a process, which gRPC would not."""

from __future__ import annotations

import re
import ssl
import time

from terngrad.service.security import Tls, Withdrawn

_TIME = rb"(?:\x17\x0d|\x18\x0f)(\d{12,14}Z)"  # UTCTime or GeneralizedTime of a certificate
_VALIDITY = re.compile(rb"\x30[\x1e\x20\x22]" + _TIME + _TIME)


class CertificateError(ValueError):
    """Says what is wrong with a file.

    Attributes:
      field: of `Tls`, which names the file.
      path: the file.
      why: what is wrong.
    """

    def __init__(self, field: str, path: str, why: str) -> None:
        super().__init__(f"{field} is {path!r}: {why}")
        self.field, self.path, self.why = field, path, why


def check(tls: Tls) -> None:
    """Raises CertificateError if a file cannot be read, holds something else or is out of date."""
    for field in ("ca", "cert", "key"):
        path = getattr(tls, field)
        try:
            open(path, "rb").close()
        except OSError as error:
            raise CertificateError(field, path, f"cannot be read: {error.strerror}") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_verify_locations(tls.ca)
    except ssl.SSLError:
        raise CertificateError("ca", tls.ca, "there is no certificate in it") from None
    try:
        context.load_cert_chain(tls.cert, tls.key, password="")
    except ssl.SSLError:
        why = f"there is no certificate in it, or none for the key {tls.key}"
        raise CertificateError("cert", tls.cert, why) from None
    if why := _out_of_date(tls.cert, time.time()):
        raise CertificateError("cert", tls.cert, why)
    try:
        Withdrawn(tls.deny)
    except (OSError, ValueError) as error:
        why = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        raise CertificateError("deny", tls.deny, why) from None


def _out_of_date(path: str, now: float) -> str:
    """Returns why a file's first certificate is not valid now; "" if it is.

    Args:
      path: certificate, as PEM.
      now: seconds since 1970.
    """
    with open(path, encoding="ascii", errors="replace") as file:
        first = re.search(r"-----BEGIN CERT.*?-----END CERTIFICATE-----", file.read(), re.DOTALL)
    dates = _VALIDITY.search(ssl.PEM_cert_to_DER_cert(first[0])) if first else None
    if not dates:  # as TLS will say
        return ""
    clock = time.strftime("%Y%m%d%H%M%SZ", time.gmtime(now))
    begin, end = (_with_century(date.decode()) for date in dates.groups())
    if begin <= clock <= end:
        return ""
    days = f"is valid from {_in_words(begin)} to {_in_words(end)} UTC"
    return f"{days}; the clock of this machine says {_in_words(clock)}"


def _with_century(date: str) -> str:
    """Writes YYMMDDhhmmssZ with four digits of the year, as RFC 5280 reads it."""
    return date if len(date) == 15 else f"{'19' if date >= '50' else '20'}{date}"


def _in_words(date: str) -> str:
    return f"{date[:4]}-{date[4:6]}-{date[6:8]} {date[8:10]}:{date[10:12]}"
