"""Processes with certificates meet at the chief; others are refused, and each learns why."""

import contextlib
import dataclasses
import queue
import socket
import ssl
import struct

import pytest

from terngrad.cluster import admission
from terngrad.cluster.addresses import listen, split_address
from terngrad.cluster.errors import MembershipError
from terngrad.cluster.membership import Membership
from terngrad.connect.certificates import serial_of
from terngrad.connect.config import ConnectConfig
from terngrad.connect.tls import TlsContexts
from terngrad.testing import threads
from terngrad.testing.addresses import free_address
from terngrad.testing.certificates import make_certificates
from terngrad.testing.proxy import Fault, FaultKind, Proxy, plan
from terngrad.testing.selection import sample
from terngrad.testing.threads import TIMEOUT, assert_met, in_threads, received

HOSTS = ["127.0.0.1:2222", "127.0.0.1:2223", "127.0.0.1:2224"]


@pytest.fixture(scope="module", name="files")
def _files(tmp_path_factory):
    """Certificates: of this training, for another host, and of another authority."""
    folder = tmp_path_factory.mktemp("certificates")
    ours = make_certificates(folder, "ours", "here")
    elsewhere = make_certificates(folder, "ours", "elsewhere", ("DNS:host-b", "IP:127.0.0.2"))
    foreign = dataclasses.replace(make_certificates(folder, "theirs", "stranger"), ca=ours.ca)
    return {"ours": ours, "elsewhere": elsewhere, "foreign": foreign}


def joining(rank, address, tls, hosts=HOSTS[:2], timeout_secs=TIMEOUT):
    return threads.joining(rank, address, hosts, timeout_secs, TlsContexts(tls) if tls else None)


def test_all_join_and_an_unknown_caller_learns_nothing(files):
    address = free_address()
    tls = files["ours"]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(tls.ca)

    def unknown():
        plain = socket.create_connection(split_address(address), TIMEOUT)
        refused = pytest.raises((ssl.SSLError, ConnectionResetError))
        with refused, context.wrap_socket(plain) as encrypted:
            encrypted.recv(1)
        return joining(2, address, tls, HOSTS)()

    chief, second, third = in_threads(
        joining(0, address, tls, HOSTS), joining(1, address, tls, HOSTS), unknown
    )
    assert_met([chief, second, third])
    tokens = in_threads(
        *(
            lambda r=r, p=p: admission.share_token(ConnectConfig(HOSTS, r, (), TIMEOUT), p)
            for r, p in enumerate([chief, second, third])
        )
    )
    assert len(set(tokens)) == 1 and len(tokens[0]) == 16


@pytest.mark.parametrize("said", [b"", b"{", b"\x16\x03\x01"])
def test_an_unknown_caller_that_leaves_before_its_turn_does_not_stop_the_others(files, said):
    address, tls = free_address(), files["ours"]
    listener = listen(*split_address(address))
    with socket.create_connection(split_address(address), TIMEOUT) as unknown:
        unknown.sendall(said)
        unknown.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    config = ConnectConfig(HOSTS[:2], 0, (), TIMEOUT, TlsContexts(tls))
    chief = lambda: admission.receive_all(config, listener)
    assert_met(in_threads(chief, joining(1, address, tls)))


ALL_OR_NONE = "all processes need certificates, or none"


@pytest.mark.parametrize(
    ("chief", "other", "why_chief", "why_other"),
    [
        ("ours", "elsewhere", "its certificate is for 127.0.0.2, host-b, not 127.0.0.1", "same"),
        ("elsewhere", "ours", "did not join", "its certificate is for 127.0.0.2, host-b, not"),
        (
            "ours",
            "foreign",
            "a process was refused: this training's authority has not signed its certificate: ",
            "it refuses the certificate of this process: unknown ca",
        ),
        ("foreign", "ours", "did not join", "this training's authority has not signed"),
        ("ours", None, f"a process was refused: without TLS: {ALL_OR_NONE}", ALL_OR_NONE),
        (None, "ours", f"it uses TLS: {ALL_OR_NONE}", f"it does not use TLS: {ALL_OR_NONE}"),
    ],
)
def test_law_10_a_certificate_that_does_not_fit_is_named_on_both_sides(
    files, chief, other, why_chief, why_other
):
    address = free_address()
    contexts = TlsContexts(files[chief]) if chief else None
    called = joining(1, address, files.get(other))
    error, complaint = received(called, address, HOSTS[:2], contexts, fault=why_chief)
    assert isinstance(error, MembershipError), error
    for reported, why in ((complaint, why_chief), (str(error), why_other)):
        assert (why_chief if why == "same" else why) in reported
        assert "\n" not in reported
    assert "worker 0 (127.0.0.1:2222)" in str(error)


@pytest.mark.parametrize("rank", [0, 1])
def test_law_10_a_failure_before_a_process_has_joined_is_reported_over_tls(files, rank):
    address = free_address()
    config = ConnectConfig(HOSTS, rank, (), TIMEOUT, TlsContexts(files["ours"]))
    fail = lambda: admission.report_failure(config, address, "why")
    others = [joining(i, address, files["ours"], HOSTS) for i in range(3) if i != rank]
    none, *errors = in_threads(fail, *others)
    assert none is None
    assert {str(error) for error in errors} == {f"worker {rank} ({HOSTS[rank]}) failed: why"}


def test_law_10_a_revoked_certificate_is_named_on_both_sides(files, tmp_path):
    with open(files["ours"].cert, encoding="ascii") as file:
        serial = serial_of(ssl.PEM_cert_to_DER_cert(file.read()))
    deny = tmp_path / "denied.txt"
    deny.write_text(f"{serial:X}\n")
    address = free_address()
    strict = TlsContexts(dataclasses.replace(files["ours"], deny=str(deny)))
    why = f"worker 1 (127.0.0.1:2223) was refused: its certificate {serial:X}"
    called = joining(1, address, files["ours"])
    for reported in received(called, address, HOSTS[:2], strict, fault=why):
        assert why in str(reported)


@pytest.mark.parametrize("seed", sample(range(20), in_ci=range(6)))
def test_over_a_bad_network_processes_meet_or_learn_why_not(files, seed):
    address, tls = free_address(), files["ours"]
    small = [
        dataclasses.replace(f, after_bytes=f.after_bytes % 3000)
        for f in plan(seed, [*FaultKind], 3)
    ]
    with Proxy(address, small) as proxy:
        results = in_threads(
            joining(0, address, tls, timeout_secs=0.5),
            joining(1, proxy.address, tls, timeout_secs=0.5),
        )
    for result in results:
        if not isinstance(result, dict):
            assert isinstance(result, MembershipError) and "\n" not in str(result), repr(result)


def test_changed_messages_end_a_membership_with_a_name(files):
    address, tls, lost = free_address(), files["ours"], queue.Queue()
    fault = Fault(FaultKind.CORRUPT, to_server=True, after_bytes=6000, bit=0)
    with Proxy(address, [fault]) as proxy, contextlib.ExitStack() as stack:
        both = in_threads(joining(0, address, tls), joining(1, proxy.address, tls))
        for rank, peers in enumerate(both):
            membership = Membership(
                ConnectConfig(HOSTS[:2], rank, (), TIMEOUT), peers, on_loss=lost.put
            )
            stack.push(membership)
        message = {"configuration": {"x": "y" * 100}}
        for _ in range(200):
            both[1][0].send(message)
        reported = {lost.get(timeout=TIMEOUT), lost.get(timeout=TIMEOUT)}
    link = "the connection from worker 1 (127.0.0.1:2223) to worker 0 (127.0.0.1:2222)"
    assert all(f" ends: {link}: bytes have changed on the way (TLS: " in line for line in reported)
    found = [line for line in reported if "TLS: decryption failed or bad record mac" in line]
    assert [line[:8] for line in found] == ["worker 0"]
