"""Who has the secret of a training joins; who has not learns nothing."""

import contextlib
from concurrent import futures

import grpc
import pytest

from terngrad.cluster import run_secret
from terngrad.cluster.channel import MembershipError
from terngrad.coordination.states import Rules
from terngrad.exchange.parameter_server.server.reduction import Reduction
from terngrad.exchange.parameter_server.server.server import Server
from terngrad.exchange.parameter_server.worker.client import Client
from terngrad.ops.packing import ReferencePacking
from terngrad.service import proofs
from terngrad.service.messages import SERVICE, Proof
from terngrad.service.streams import hello, identity
from terngrad.testing.addresses import free_addresses
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.strangers import WORKERS, hello_of, stranger

SECS = HANG_SECS


@contextlib.contextmanager
def serving(secret):
    """Yields the address of a ps."""
    (host,) = free_addresses(1)
    rules = Rules(2, False, SECS)
    server = Server(0, [host], WORKERS, Reduction(ReferencePacking()), rules, secret=secret)
    server.start(host)
    try:
        yield host
    finally:
        server.close()


SECRET = b"a secret of many characters"


def test_workers_with_the_secret_join_and_learn_what_differs():
    with serving(SECRET) as host:
        clients = [Client([host], WORKERS, rank, SECS, secret=SECRET) for rank in (0, 1)]
        with futures.ThreadPoolExecutor(2) as pool:
            views = pool.map(lambda c: c.meeting.next_view(0, is_live=False).number, clients)
            assert len(set(views)) == 1
        for client in clients:
            client.close(is_done=False)
        other = ["one:1", "else:2"]
        with pytest.raises(MembershipError, match=r"worker hosts are \['one:1', 'else:2'\]; this"):
            Client([host], other, 1, SECS, secret=SECRET)


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
        Client([host], ["one:1", "else:2"], 1, SECS, secret=theirs)
    assert "one:1" not in str(raised.value)


def proof_by(host, worker, ps=0):
    """A proof of SECRET, for a nonce of a ps."""
    with grpc.insecure_channel(host) as channel:
        ask = channel.unary_unary(f"/{SERVICE}/Prove", identity, identity)
        asked = proofs.request()
        introduction = hello(worker, ps, [], [])
        return proofs.proven(introduction, SECRET, asked, ask(asked.SerializeToString())).proof


def test_a_proof_is_good_once_and_for_one_worker():
    with serving(SECRET) as host:
        code = lambda worker, proof: stranger(
            host, hello_of(host, worker, proof=proof), messages=[b""]
        )[1]
        proof = proof_by(host, 1)
        assert "another secret" in code(0, proof)
        assert "does not know any more" in code(1, proof)  # it was used
        proof = proof_by(host, 1)
        assert "does not begin with its header" in code(1, proof)  # it was admitted
        assert "does not know any more" in code(1, proof)
        with grpc.insecure_channel(host) as channel:
            ask = channel.unary_unary(f"/{SERVICE}/Prove", identity, identity)
            with pytest.raises(grpc.RpcError, match="the message is no Proof"):
                ask(b"\xff")
            own = Proof.FromString(ask(b""))
        assert "another secret" in code(1, own)  # what the ps itself has shown


def test_a_worker_whose_nonce_the_ps_has_forgotten_shows_another_proof(monkeypatch):
    proven, calls = proofs.proven, []

    def first_outdated(introduction, secret, asked, answer):
        calls.append(asked)
        if len(calls) == 1:  # as if another ps, which restarts after this, had given it
            nonce = asked.nonce
            shown = run_secret.proof(secret, "ps 0", nonce, nonce)
            answer = Proof(nonce=nonce, proof=shown).SerializeToString()
        return proven(introduction, secret, asked, answer)

    monkeypatch.setattr(proofs, "proven", first_outdated)
    with serving(SECRET) as host:
        Client([host], WORKERS, 1, SECS, secret=SECRET).close(is_done=False)
    assert len(calls) > 1


def test_bytes_that_are_no_proof_prove_nothing():
    assert proofs.proven(hello(1, 0, [], []), SECRET, proofs.request(), b"\xff") is None
