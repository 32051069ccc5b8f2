"""Handshakes of sockets for the mesh: who is admitted, and the errors of the others."""

import dataclasses
import signal
import socket
import subprocess
import sys
import threading

import pytest

from terngrad.ops import tls
from terngrad.testing.certificates import make_certificates
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.threads import in_threads

TIMEOUT_SECS = HANG_SECS


@pytest.fixture(scope="module", name="files")
def _files(tmp_path_factory, native_library):
    """Certificates: of this training, for another host, of another authority; and a lost key."""
    folder = tmp_path_factory.mktemp("certificates")
    ours = make_certificates(folder, "ours", "here", ("IP:127.0.0.1", "IP:::1", "DNS:*.b.example"))
    elsewhere = make_certificates(folder, "ours", "elsewhere", ("DNS:host-b",))
    foreign = dataclasses.replace(make_certificates(folder, "theirs", "stranger"), ca=ours.ca)
    found = {"ours": ours, "elsewhere": elsewhere, "foreign": foreign}
    return {name: tls.Files(each.ca, each.cert, each.key) for name, each in found.items()} | {
        "no key": tls.Files(ours.ca, ours.cert, "/gone")
    }


def shake(files, client, server="ours", host="127.0.0.1", names=("a", "a")):
    """What both sides of a handshake return or raise; the client's first."""
    ends = socket.socketpair()

    def of(side, is_server):
        own = tls.encrypt(
            *(ends[is_server], files[side], host),
            is_server=is_server,
            timeout_secs=TIMEOUT_SECS,
            name=names[is_server],
        )
        certificate = own.certificate
        own.close()
        return certificate

    return in_threads(lambda: of(client, False), lambda: of(server, True))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "a.b.example"])
def test_both_sides_learn_the_others_certificate(files, host):
    client, server = shake(files, "ours", host=host)
    assert client == server and client[:1] == b"\x30"


@pytest.mark.parametrize(
    ("client", "host", "why"),
    [
        ("elsewhere", "127.0.0.1", "its certificate is refused: IP address mismatch"),
        ("ours", "host-b", "its certificate is refused: hostname mismatch"),
        ("foreign", "127.0.0.1", "its certificate is refused: unable to get local issuer"),
        ("no key", "127.0.0.1", "it closed the connection"),
    ],
)
def test_law_10_a_certificate_that_does_not_fit_is_named(files, client, host, why):
    both = shake(files, client, host=host)
    assert isinstance(both[1], ConnectionError)
    assert why.lower() in "; ".join(map(str, both)).lower()


@pytest.mark.parametrize("names", [("a", "b"), ("a", ""), ("", "b"), ("a" * 255, "a" * 254)])
def test_a_connection_that_its_ends_know_by_other_names_is_refused(files, names):
    _, server = shake(files, "ours", names=names)
    why = "it opened this TLS connection under another name"
    assert str(server) == f"{why}: it belongs to another pair of workers or another run"


def test_a_long_name_is_compared_whole(files):
    client, server = shake(files, "ours", names=("a" * 255,) * 2)
    assert client == server


def test_law_10_files_that_are_wrong_are_named(files):
    (client, _) = shake(files, "no key")
    assert str(client).startswith("the files of this process: ")


@pytest.mark.parametrize(
    ("said", "why"),
    [(b"GET / HTTP/1.0\r\n\r\n", "not use TLS"), (b"\1" * 100, "not use TLS"), (None, "no answer")],
)
@pytest.mark.parametrize("is_server", [False, True])
def test_law_10_a_plain_or_silent_other_side_is_named(files, is_server, said, why):
    one, other = socket.socketpair()
    with other:
        if said:
            other.sendall(said)
        secs = TIMEOUT_SECS if said else 0.2
        with pytest.raises(ConnectionError, match=why):
            tls.encrypt(one, files["ours"], "127.0.0.1", is_server=is_server, timeout_secs=secs)


def test_a_signal_ends_the_wait_for_a_silent_other_side(files):
    class _SignalledError(Exception):
        pass

    def handle(*_):
        raise _SignalledError

    one, other = socket.socketpair()
    before = signal.signal(signal.SIGUSR1, handle)
    hello = lambda: other.recv(1) and signal.pthread_kill(main, signal.SIGUSR1)
    main, teller = threading.main_thread().ident, threading.Thread(target=hello)
    teller.start()
    try:
        with pytest.raises(_SignalledError):
            tls.encrypt(one, files["ours"], "127.0.0.1", is_server=False, timeout_secs=TIMEOUT_SECS)
    finally:
        teller.join()
        signal.signal(signal.SIGUSR1, before)
        other.close()


_WITHOUT = """
import socket
from terngrad.ops import tls
tls._libraries = lambda: ["/gone/libssl.so"]
try:
    tls.encrypt(socket.socketpair()[0], tls.Files("", "", ""), "h", is_server=True, timeout_secs=1)
except ConnectionError as error:
    print("said:", error)
"""


@pytest.mark.slow
def test_law_10_a_missing_openssl_is_named(files):
    command = [sys.executable, "-c", _WITHOUT]  # a process that has not found one yet
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG_SECS)
    assert done.stdout == "said: there is no OpenSSL 1.1.1 or later\n", done.stderr


def test_a_check_that_fails_ends_the_wait_for_a_silent_other_side(files):
    class _EndedError(Exception):
        pass

    def check():
        raise _EndedError

    one, other = socket.socketpair()
    with other, pytest.raises(_EndedError):
        tls.encrypt(
            *(one, files["ours"], "127.0.0.1"),
            is_server=True,
            timeout_secs=1e6,  # so that without the check it hangs
            check=check,
        )
