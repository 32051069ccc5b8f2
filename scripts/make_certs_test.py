"""make_certs.sh makes certificates with which only the right hosts reach each other."""

import os
import pathlib
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable

import pytest

from terngrad.connect.calling import ChannelOpener
from terngrad.connect.certificates import RevokedCertificates, Tls, serial_of
from terngrad.connect.config import ConnectConfig
from terngrad.connect.log_limiter import LogLimiter
from terngrad.connect.streams import Streams
from terngrad.connect.tls import TlsContexts
from terngrad.testing.limits import HANG_SECS

_SCRIPT = pathlib.Path(__file__).with_name("make_certs.sh")

pytestmark = pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not installed")


def _make(*arguments, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["bash", _SCRIPT, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def _made(folder: pathlib.Path, *hosts: str) -> pathlib.Path:
    result = _make(folder, *hosts)
    assert result.returncode == 0, result.stderr
    return folder


def _files(folder: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _contexts(folder: pathlib.Path, host: str) -> TlsContexts:
    names = ("ca.crt", f"{host}.crt", f"{host}.key")
    return TlsContexts(Tls(*(str(folder / name) for name in names)))


def _call(server: tuple[pathlib.Path, str], client: tuple[pathlib.Path, str]) -> list[int]:
    """Lets a worker and a ps, which listens at 127.0.0.1, connect; each shows a certificate.

    Returns:
      The workers that the ps has admitted.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        host = f"127.0.0.1:{free.getsockname()[1]}"
    admitted: list[int] = []
    opened = {"Exchange": lambda worker, channel: admitted.append(worker) or []}
    config = lambda of: ConnectConfig(["worker-1:1"], 0, [host], HANG_SECS, _contexts(*of))
    listener = Streams(config(server), opened, LogLimiter(print), longest=100, threads=1)
    listener.start(host)
    try:
        ChannelOpener(config(client), "Exchange", 0, 100).try_once(HANG_SECS).cut()
    finally:
        listener.close()
    return admitted


@pytest.fixture(scope="module")
def certificates(tmp_path_factory) -> pathlib.Path:
    return _made(tmp_path_factory.mktemp("certs") / "a folder", "127.0.0.1", "worker-1")


def test_two_hosts_of_one_authority_reach_each_other(certificates):
    assert _call((certificates, "127.0.0.1"), (certificates, "worker-1")) == [0]


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("node_7.example.org", "DNS:node_7.example.org"),
        ("192.0.2.7", "IP Address:192.0.2.7"),
        ("fe80::7", "IP Address:FE80:0:0:0:0:0:0:7"),
    ],
)
def test_a_certificate_names_its_host_alone_as_a_name_or_an_address(tmp_path, host, name):
    certificate = _made(tmp_path, host) / f"{host}.crt"
    command = ["openssl", "x509", "-in", certificate, "-noout", "-ext"]
    done = subprocess.run([*command, "subjectAltName"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1].strip() == name
    done = subprocess.run(
        [*command, "basicConstraints"], capture_output=True, text=True, check=True
    )
    assert "CA:FALSE" in done.stdout


def test_only_the_user_may_read_the_keys(tmp_path):
    folder = _made(tmp_path / "certs", "one", "two")
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert modes == {
        **dict.fromkeys(("ca.key", "one.key", "two.key"), 0o600),
        **dict.fromkeys(("ca.crt", "one.crt", "two.crt"), 0o644),
    }
    assert folder.stat().st_mode & 0o777 == 0o700
    (folder / "one.key").chmod(0o644)
    _made(folder, "one")
    assert (folder / "one.key").stat().st_mode & 0o777 == 0o600


def test_a_second_run_keeps_what_is_valid_and_makes_what_is_not(tmp_path):
    first = _files(_made(tmp_path, "one", "two", "three"))
    (tmp_path / "two.key").unlink()
    shutil.copy(tmp_path / "one.crt", tmp_path / "three.crt")
    shutil.copy(tmp_path / "one.key", tmp_path / "three.key")
    second = _files(_made(tmp_path, "one", "two", "three", "four"))
    assert {name for name in first if second[name] == first[name]} == {
        "ca.crt",
        "ca.key",
        "one.crt",
        "one.key",
    }
    assert second.keys() == first.keys() | {"four.crt", "four.key"}


@pytest.fixture
def hasty(tmp_path, working_copy) -> Callable[[str], pathlib.Path]:
    """Makes certificates for a host `one`, with AUTHORITY_DAYS or HOST_DAYS set to 20."""

    def make(days: str) -> pathlib.Path:
        script = working_copy(tmp_path / "copy") / "scripts/make_certs.sh"
        text, count = re.subn(f"^{days}=.*$", f"{days}=20", script.read_text(), flags=re.M)
        assert count == 1
        script.write_text(text)
        folder = tmp_path / "certs"
        subprocess.run(["bash", script, folder, "one"], capture_output=True, check=False)
        return folder

    return make


def test_a_certificate_that_soon_ends_is_made_again(hasty):
    folder = hasty("HOST_DAYS")
    assert f"{folder}/one.crt: made\n" in _make(folder, "one").stdout
    assert f"{folder}/one.crt: kept\n" in _make(folder, "one").stdout


@pytest.mark.parametrize("is_whole", [True, False])
def test_an_authority_that_soon_ends_or_has_no_key_is_named_and_left_as_it_is(hasty, is_whole):
    folder = hasty("AUTHORITY_DAYS")
    why = "has expired or expires soon; remove it and ca.key to make new ones"
    if not is_whole:
        (folder / "ca.key").unlink()
        why = "and ca.key are not a pair; remove both, or give another folder"
    before = _files(folder)
    assert "ca.crt" in before
    result = _make(folder, "two")
    assert result.returncode == 1
    assert result.stderr == f"make_certs.sh: {folder}/ca.crt {why}\n"
    assert _files(folder) == before


def test_revoked_certificates_are_deleted_and_their_numbers_listed(tmp_path):
    folder = _made(tmp_path, "one", "two")
    pem = (folder / "one.crt").read_text()
    kept = (folder / "two.crt").read_bytes()
    denied = str(folder / "denied.txt")
    result = _make(folder, "--revoke", "one", "none")
    assert result.stderr == f"make_certs.sh: there is no certificate of none in {folder}\n"
    assert result.returncode == 1
    assert not (folder / "one.crt").exists() and not (folder / "one.key").exists()
    assert serial_of(ssl.PEM_cert_to_DER_cert(pem)) in RevokedCertificates(denied)
    _made(folder, "one")  # the host may have a new one
    pem = (folder / "one.crt").read_text()
    assert serial_of(ssl.PEM_cert_to_DER_cert(pem)) not in RevokedCertificates(denied)
    assert _make(folder, "--revoke", "one").returncode == 0
    assert len((folder / "denied.txt").read_text().splitlines()) == 2
    assert (folder / "two.crt").read_bytes() == kept


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{dir}", "--revoke"], "needs a folder and at least one host: DIR [--revoke] HOST..."),
        (["{dir}", "ok", "not ok"], "not the name or address of a host: 'not ok'"),
        (["{dir}", "a/../b"], "not the name or address of a host: 'a/../b'"),
        (["{dir}", "ca"], "a host cannot be named 'ca': the authority's files have that name"),
        (["/proc/none", "ok"], "cannot make the folder /proc/none"),
    ],
)
def test_a_bad_argument_is_named_in_one_line_and_nothing_is_made(tmp_path, arguments, message):
    folder = tmp_path / "certs"
    result = _make(*(argument.format(dir=folder) for argument in arguments))
    assert result.returncode == 1
    assert result.stderr == f"make_certs.sh: {message}\n"
    assert not folder.exists()
