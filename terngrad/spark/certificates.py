"""Certificates for one run, made where it starts and handed to its processes by Spark."""

from __future__ import annotations

import dataclasses
import ipaddress
import shutil
import ssl
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

_NAMES = ("ca", "cert", "key")
_DAYS = "30"
_EXTENSIONS = """subjectAltName = {names}
basicConstraints = critical, CA:FALSE
extendedKeyUsage = serverAuth, clientAuth
"""


@dataclasses.dataclass(frozen=True)
class Certificates:
    """PEM texts: the authority's certificate, and the processes' certificate and key."""

    ca: str
    cert: str
    key: str = dataclasses.field(repr=False)  # it must not get into logs

    def store(self, folder: str) -> dict[str, str]:
        """Writes the three texts into a private folder; returns their paths by name."""
        paths = {name: str(Path(folder, f"{name}.pem")) for name in _NAMES}
        for name, path in paths.items():
            Path(path).write_text(getattr(self, name), encoding="ascii")
        return paths

    def context(self, purpose: ssl.Purpose) -> ssl.SSLContext:
        """Returns the settings of a connection on which both sides show the certificate."""
        context = ssl.create_default_context(purpose, cadata=self.ca)
        context.verify_mode = ssl.CERT_REQUIRED
        with tempfile.TemporaryDirectory() as folder:
            paths = self.store(folder)
            context.load_cert_chain(paths["cert"], paths["key"])
        return context


def make_certificates(hosts: Sequence[str]) -> Certificates:
    """Makes an authority and one certificate for the hosts; does not keep the authority's key.

    Raises:
      ValueError: openssl is missing or fails.
    """
    if not shutil.which("openssl"):
        raise ValueError("needs openssl; on Debian or Ubuntu: sudo apt-get install -y openssl")
    with tempfile.TemporaryDirectory() as folder:

        def openssl(*words: str) -> None:
            done = subprocess.run(["openssl", *words], cwd=folder, capture_output=True, check=False)
            if done.returncode:
                raise ValueError(f"openssl {words[0]}: {done.stderr.decode(errors='replace')}")

        names = ", ".join(f"{_kind(host)}:{host}" for host in sorted(set(hosts)))
        Path(folder, "extensions").write_text(_EXTENSIONS.format(names=names), encoding="ascii")
        new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        authority = ("-keyout", "ca.key", "-out", "ca.pem", "-days", _DAYS, "-subj", "/CN=run")
        openssl("req", "-x509", *new, *authority)
        openssl("req", *new, "-keyout", "key.pem", "-out", "request", "-subj", "/CN=process")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", _DAYS)
        files = ("-in", "request", "-out", "cert.pem", "-extfile", "extensions")
        openssl("x509", "-req", *files, *signed)
        return Certificates(*(Path(folder, f"{name}.pem").read_text("ascii") for name in _NAMES))


def _kind(host: str) -> str:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return "DNS"
    return "IP"
