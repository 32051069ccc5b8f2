"""A listener checks a caller again at the end of its introduction."""

import dataclasses

import pytest

from terngrad.cluster import run_secret
from terngrad.connect import introduction
from terngrad.connect.introduction import MAGIC, SIZE_BYTES, AdmissionError, Hello, frame

SECRET = b"a secret of many characters"
HELLO = Hello("Exchange", 1, 0, ["one:1", "two:2"], ["ps:1"])


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
