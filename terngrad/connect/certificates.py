"""The certificates of a training: their files, for whom each is valid, and which are revoked.

A process may only join as a host that its certificate names. Serial numbers of revoked
certificates stand in a file, which is read again when it changes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import os
import re
import ssl
import time
from collections.abc import Collection

_TIME = rb"(?:\x17\x0d|\x18\x0f)(\d{12,14}Z)"  # UTCTime or GeneralizedTime of a certificate
_VALIDITY = re.compile(rb"\x30[\x1e\x20\x22]" + _TIME + _TIME)
_VERSION_TAG = 0xA0  # of a certificate's first field


@dataclasses.dataclass(frozen=True)
class Tls:
    """PEM files of a process: the authority's certificate, its own certificate, and its key.

    Both sides must show a certificate. That of a ps must name its host in --ps_hosts, that of a
    worker its host in --worker_hosts.

    Attributes:
      ca: certificate of the authority.
      cert: certificate of this process.
      key: its private key.
      deny: file with serial numbers of revoked certificates; "" = none.
    """

    ca: str
    cert: str
    key: str
    deny: str = ""


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


@dataclasses.dataclass(frozen=True)
class Certificate:
    """What a peer's certificate says.

    Attributes:
      names: hosts and addresses for which it is valid.
      serial: serial number.
    """

    names: Collection[str]
    serial: int

    def is_for(self, host: str) -> bool:
        """Whether it is valid for a host: an address, or a name, where *.example.org has one *."""
        return any(_same(name, host) for name in self.names)


def serial_of(certificate: bytes) -> int:
    """Returns the serial number of a certificate in DER, whose first fields RFC 5280 fixes."""
    _, whole, _ = _element(certificate, 0)
    _, start, _ = _element(certificate, whole)
    tag, start, end = _element(certificate, start)
    if tag == _VERSION_TAG:  # optional
        _, start, end = _element(certificate, end)
    return int.from_bytes(certificate[start:end], "big", signed=True)


class RevokedCertificates:
    """The serial numbers in a file: hexadecimal, one a line, with or without colons; # comments."""

    def __init__(self, path: str) -> None:
        """Reads the file; "" is an empty one.

        Raises:
          OSError: the file cannot be read.
          ValueError: a line is not a serial number; the message names it.
        """
        self._path = path
        self._seen: tuple[int, ...] | None = None
        self._serials: frozenset[int] = frozenset()
        self.refresh()

    def __contains__(self, serial: int) -> bool:
        """Whether a serial number was in the file when it was last read."""
        return serial in self._serials

    def refresh(self) -> bool:
        """Reads the file again if it has changed; returns whether it had.

        Raises:
          OSError, ValueError: see `__init__`. The numbers read before still count.
        """
        if not self._path:
            return False
        found = os.stat(self._path)
        seen = (found.st_mtime_ns, found.st_size, found.st_ino)
        if seen == self._seen:
            return False
        with open(self._path, encoding="utf-8", errors="replace") as file:
            lines = [line.partition("#")[0].strip() for line in file]
        self._serials = frozenset(_serial_in(line) for line in lines if line)
        self._seen = seen  # not before, so that a file that could not be read is read again
        return True


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
        RevokedCertificates(tls.deny)
    except (OSError, ValueError) as error:
        why = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        raise CertificateError("deny", tls.deny, why) from None


def _same(name: str, host: str) -> bool:
    if (address := _as_address(host)) is not None:
        return _as_address(name) == address
    name, host = name.lower().rstrip("."), host.lower().rstrip(".")
    if name.startswith("*."):
        return bool(name[2:]) and host.partition(".")[2] == name[2:]
    return name == host


def _as_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host)
    return None


def _element(data: bytes, start: int) -> tuple[int, int, int]:
    """Returns tag, start and end of the content of the DER element at an index."""
    tag, length, start = data[start], data[start + 1], start + 2
    if length & 0x80:  # the length follows in as many bytes
        count = length & 0x7F
        length, start = int.from_bytes(data[start : start + count], "big"), start + count
    return tag, start, start + length


def _serial_in(line: str) -> int:
    digits = line.removeprefix("serial=").replace(":", "").removeprefix("0x")
    if not re.fullmatch(r"[0-9A-Fa-f]+", digits):
        raise ValueError(f"'{line[:80]}' is not a serial number, which has hexadecimal digits only")
    return int(digits, 16)


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
