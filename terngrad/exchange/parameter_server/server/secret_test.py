"""Processes with the secret of a training join; one without it learns nothing."""

import contextlib
import socket
from concurrent import futures

import pytest

from terngrad.cluster import run_secret
from terngrad.cluster.errors import MembershipError
from terngrad.connect import introduction
from terngrad.connect.introduction import MAGIC, AdmissionError, AuthenticationError, Hello, frame
from terngrad.coordination.states import Rules
from terngrad.exchange.parameter_server.server.arithmetic import PackedArithmetic
from terngrad.exchange.parameter_server.server.server import Server
from terngrad.exchange.parameter_server.worker.client import Client
from terngrad.ops.packing import ReferencePacking
from terngrad.testing.addresses import free_addresses
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.ps_clients import WORKERS, answer_in, config_of, connect, greeted, hello_of

SECS = HANG_SECS


@contextlib.contextmanager
def serving(secret):
    """Yields the address of a ps."""
    (host,) = free_addresses(1)
    rules = Rules(2, False, SECS)
    server = Server(
        config_of([host], 0, secret=secret), PackedArithmetic(ReferencePacking()), rules
    )
    server.start(host)
    try:
        yield host
    finally:
        server.close()


SECRET = b"a secret of many characters"


def test_workers_with_the_secret_join_and_learn_what_differs():
    with serving(SECRET) as host:
        clients = [Client(config_of([host], rank, secret=SECRET)) for rank in (0, 1)]
        with futures.ThreadPoolExecutor(2) as pool:
            views = pool.map(lambda c: c.coordination.next_view(0, is_live=False).number, clients)
            assert len(set(views)) == 1
        for client in clients:
            client.close(is_done=False)
        other = ["one:1", "else:2"]
        with pytest.raises(MembershipError, match=r"worker hosts are \['one:1', 'else:2'\]; this"):
            Client(config_of([host], 1, workers=other, secret=SECRET))


@pytest.mark.parametrize(
    ("own", "theirs", "text"),
    [
        (SECRET, b"", "this training was started with a secret, which this process lacks: start"),
        (b"", SECRET, "it was started without a secret, this process with one: export the same"),
        (SECRET, b"guess" * 4, r"ps 0 \(.*\): it has another secret than this process: all need"),
    ],
    ids=["missing", "unknown", "different"],
)
def test_law_10_a_worker_without_the_secret_learns_nothing_else(own, theirs, text):
    with (
        serving(own) as host,
        pytest.raises(MembershipError, match=text) as raised,
    ):
        Client(config_of([host], 1, workers=["one:1", "else:2"], secret=theirs))
    assert "one:1" not in str(raised.value)


def test_a_proof_is_valid_on_one_connection_only():
    nonce, other = run_secret.new_nonce().hex(), run_secret.new_nonce().hex()
    with serving(SECRET) as host:
        own = {"nonce": nonce}
        connected, asked = greeted(host, hello_of(host, **own))
        speaker = f"worker 1 to ps 0 for Exchange of {host},{','.join(WORKERS)}"
        theirs = bytes.fromhex(asked["nonce"]), bytes.fromhex(nonce)
        shown = run_secret.proof(SECRET, speaker, *theirs).hex()
        connected.sendall(frame({"proof": shown}))
        assert "welcome" in answer_in(connected)
        for purpose, worker, proof in [
            ("Exchange", 1, shown),  # a replay
            ("Meet", 0, shown),
            ("Exchange", 1, asked["proof"]),  # what the ps itself has shown
            ("Exchange", 1, ""),
            ("Exchange", 1, 7),
        ]:
            again, _ = greeted(host, hello_of(host, worker, purpose, nonce=other))
            again.sendall(frame({"proof": proof}))
            assert "it has another secret" in answer_in(again)["refused"]


@pytest.mark.parametrize(
    ("callee", "workers", "why"),
    [(1, WORKERS, "this is ps 0"), (0, ("one:1", "other:2"), "its worker hosts are")],
    ids=["another ps", "another training with this secret"],
)
def test_a_ps_proves_nothing_for_a_program_that_took_the_place_of(callee, workers, why):
    """Of a program that passes on what it hears, and then welcomes the worker itself."""
    with serving(SECRET) as host, connect(host) as passed_on:
        answers = iter([lambda: answer_in(passed_on), lambda: {"welcome": SECS}])
        hello = Hello("Exchange", 1, callee, list(workers), [host])
        with pytest.raises(AuthenticationError):
            introduction.introduce(hello, SECRET, passed_on.sendall, lambda: next(answers)())
        assert why in answer_in(passed_on)["refused"]


def test_a_ps_proves_nothing_about_other_hosts_than_its_own():
    """Of a program that puts the hosts of this ps where a worker has those of its training."""
    with serving(SECRET) as host, connect(host) as passed_on:

        def pass_on(said):
            if said.startswith(MAGIC):
                nonce = introduction.read(said[len(MAGIC) + introduction.SIZE_BYTES :])["nonce"]
                said = hello_of(host, nonce=nonce)
            passed_on.sendall(said)

        answers = iter([lambda: answer_in(passed_on)])
        hello = Hello("Exchange", 1, 0, ["one:1", "other:2"], [host])
        with pytest.raises(AuthenticationError):
            introduction.introduce(hello, SECRET, pass_on, lambda: next(answers)())


def test_why_a_worker_is_refused_fits_into_a_frame():
    with serving(SECRET) as host, connect(host) as connected:
        hello = Hello("Exchange", 1, 0, ["one:1", "x" * 50_000], [host])
        with pytest.raises(AdmissionError, match="worker hosts are") as raised:
            introduction.introduce(hello, SECRET, connected.sendall, lambda: answer_in(connected))
        assert len(str(raised.value)) == 8192


def test_a_hello_may_hold_what_is_no_text():
    with serving(SECRET) as host:
        nonce = run_secret.new_nonce().hex()
        connected, answer = greeted(host, hello_of(host, purpose="\ud800", nonce=nonce))
        connected.sendall(frame({"proof": nonce}))
        assert "proof" in answer
        assert "it has another secret" in answer_in(connected)["refused"]


def test_a_worker_gives_a_ps_without_the_secret_no_proof():
    """Of a program that pretends to be the ps, and returns what it has heard."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        host = f"127.0.0.1:{listening.getsockname()[1]}"

        def pretend():
            with listening.accept()[0] as caller:
                hello = caller.recv(1 << 16)
                assert hello.startswith(MAGIC)
                caller.sendall(frame({"nonce": "00", "proof": "00"}))
                return caller.recv(1 << 16)

        with futures.ThreadPoolExecutor(1) as pool:
            said = pool.submit(pretend)
            with pytest.raises(MembershipError, match="it has another secret"):
                Client(config_of([host], 1, secret=SECRET))
            assert said.result(SECS) == frame({"proof": ""})
