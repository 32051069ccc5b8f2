"""Which processes may reach a ps: those with a certificate or, without TLS, those of a machine.

A certificate also says as whom its holder may come: its names are those of the hosts whose places
it may take. Serial numbers of withdrawn certificates stand in a file, which is read anew when it
changes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import os
import re
import ssl
from collections.abc import Collection

import grpc

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
      deny: file with serial numbers of withdrawn certificates; "" = none.
    """

    ca: str
    cert: str
    key: str
    deny: str = ""

    def server_credentials(self) -> grpc.ServerCredentials:
        """Returns the credentials of a ps; OSError names a file that cannot be read."""
        ca, cert, key = (_read(path) for path in (self.ca, self.cert, self.key))
        return grpc.ssl_server_credentials([(key, cert)], ca, require_client_auth=True)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Returns the credentials of a worker; OSError names a file that cannot be read."""
        ca, cert, key = (_read(path) for path in (self.ca, self.cert, self.key))
        return grpc.ssl_channel_credentials(ca, key, cert)


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


def certificate_of(context: grpc.ServicerContext) -> Certificate | None:
    """Returns the certificate that the caller has shown; None without TLS."""
    said = context.auth_context()
    if not (pem := said.get("x509_pem_cert")):
        return None
    names = said.get("x509_subject_alternative_name", ())
    serial = serial_of(ssl.PEM_cert_to_DER_cert(pem[0].decode()))
    return Certificate([name.decode() for name in names], serial)


def serial_of(certificate: bytes) -> int:
    """Returns the serial number of a certificate in DER, whose first fields RFC 5280 fixes."""
    _, whole, _ = _element(certificate, 0)
    _, start, _ = _element(certificate, whole)
    tag, start, end = _element(certificate, start)
    if tag == _VERSION_TAG:  # optional
        _, start, end = _element(certificate, end)
    return int.from_bytes(certificate[start:end], "big", signed=True)


class Withdrawn:
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


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
