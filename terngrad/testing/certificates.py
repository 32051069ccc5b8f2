"""Certificates for tests of encrypted connections."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from terngrad.connect.certificates import Tls


def make_launched_certificates(folder: Path) -> None:
    """Makes those of processes on this machine, named as `terngrad.launch` reads them.

    Args:
      folder: folder for the files.
    """
    make_certificates(folder, "ca", "127.0.0.1")
    (folder / "ca.pem").rename(folder / "ca.crt")
    (folder / "127.0.0.1.pem").rename(folder / "127.0.0.1.crt")


def make_certificates(
    folder: Path, authority: str, name: str, hosts: Sequence[str] = ("IP:127.0.0.1",)
) -> Tls:
    """Makes a key and a certificate for some hosts and signs the certificate.

    Args:
      folder: folder for the files.
      authority: name of the authority that signs; it is made at its first use in a folder.
      name: name of the certificate's owner.
      hosts: what the certificate is valid for, as "IP:127.0.0.1" or "DNS:one".
    """

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    if not (folder / f"{authority}.pem").exists():
        files = ("-keyout", f"{authority}.key", "-out", f"{authority}.pem", "-days", "2", "-nodes")
        openssl("req", "-x509", "-newkey", "rsa:2048", *files, "-subj", f"/CN={authority}")
    files = ("-keyout", f"{name}.key", "-out", f"{name}.csr", "-nodes")
    openssl("req", "-newkey", "rsa:2048", *files, "-subj", f"/CN={name}")
    (folder / "names").write_text(f"subjectAltName={','.join(hosts)}\n")
    signed = ("-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", "-CAcreateserial")
    out = ("-days", "2", "-out", f"{name}.pem", "-extfile", "names")
    openssl("x509", "-req", "-in", f"{name}.csr", *signed, *out)
    return Tls(*(str(folder / file) for file in (f"{authority}.pem", f"{name}.pem", f"{name}.key")))
