"""What a caller may say in its introduction, and when a listener checks it."""

import dataclasses

import pytest

from terngrad.cluster import run_secret
from terngrad.cluster.errors import LONGEST_REASON, MembershipError
from terngrad.connect import introduction
from terngrad.connect.config import ConnectConfig
from terngrad.connect.introduction import (
    LONGEST,
    LONGEST_HOSTS,
    MAGIC,
    SIZE_BYTES,
    AdmissionError,
    AuthenticationError,
    Hello,
    frame,
    introduce,
    read,
)

SECRET = b"a secret of many characters"
HELLO = Hello("Exchange", 1, 0, ["one:1", "two:2"], ["ps:1"])


def test_the_longest_list_of_hosts_fits_into_a_hello():
    hosts = ["h" * 96] * (LONGEST_HOSTS // 100)
    hosts[0] += "h" * (LONGEST_HOSTS % 100)
    hello = ConnectConfig(hosts, 0).hello("Exchange", 1, "r" * 200, failed="ü" * LONGEST_REASON)
    nonce = run_secret.new_nonce().hex()
    assert len(frame(dataclasses.asdict(hello) | {"nonce": nonce})) <= LONGEST
    why = "list of 574 hosts has 57348 bytes as JSON; allowed are 57344: fewer processes, or"
    with pytest.raises(MembershipError, match=why):
        ConnectConfig(hosts, 0, [""])


def test_a_caller_revoked_during_its_introduction_is_refused():
    sent, why, nonce = [], [], run_secret.new_nonce()

    def check(hello):
        if why:
            raise AdmissionError(why[0])

    hearing = introduction.receive_hello(sent.append, check, SECRET)
    wanted = next(hearing)

    def receive(said):
        nonlocal wanted
        while said:
            part, said = said[:wanted], said[wanted:]
            wanted = hearing.send(part)

    receive(MAGIC + frame(dataclasses.asdict(HELLO) | {"nonce": nonce.hex()}))
    why.append("revoked")
    asked = bytes.fromhex(introduction.read(sent[0][SIZE_BYTES:])["nonce"])
    proof = run_secret.proof(SECRET, HELLO.proof_names[0], asked, nonce)
    with pytest.raises(AdmissionError, match="revoked") as raised:
        receive(frame({"proof": proof.hex()}))
    assert raised.value.hello == HELLO


def test_a_proof_made_for_another_text_is_refused_though_its_bytes_are_the_same(monkeypatch):
    # A program without the secret listens as ps 0. It has ps 1 sign a text that ends as a refusal:
    # the hosts of its hello hold the nonce of the worker that calls ps 0.
    monkeypatch.setattr(run_secret, "new_nonce", lambda: b"n" * run_secret.NONCE_BYTES)
    called, sent, own_nonce = [], [], b"m" * run_secret.NONCE_BYTES
    with pytest.raises(EOFError):
        introduce(HELLO, SECRET, called.append, _end)
    theirs = read(called[0][len(MAGIC) + SIZE_BYTES :])
    hosts = [*HELLO.worker_hosts[:-1], f"{HELLO.worker_hosts[-1]}\n{'n' * 16}\nx"]
    asks = theirs | {"worker_hosts": hosts, "nonce": own_nonce.hex()}
    hearing = introduction.receive_hello(sent.append, _refuse, SECRET)
    next(hearing)
    for octet in MAGIC:
        hearing.send(bytes([octet]))
    said = frame(asks)
    hearing.send(said[:SIZE_BYTES])
    hearing.send(said[SIZE_BYTES:])
    challenge = read(sent[0][SIZE_BYTES:])
    forged = b"x refused\n" + own_nonce + b"\n" + bytes.fromhex(challenge["nonce"])
    speaker, proof = HELLO.proof_names[1], bytes.fromhex(challenge["proof"])
    assert run_secret.is_proof(proof, SECRET, speaker, b"n" * 16, forged)  # the bytes would do
    answer = {"nonce": forged.hex(), "proof": challenge["proof"]}
    with pytest.raises(AuthenticationError, match="another secret"):
        introduce(HELLO, SECRET, called.append, lambda: answer)


def _end():
    raise EOFError


def _refuse(hello):
    raise AdmissionError("its hosts differ")
