"""How a worker and a ps show each other the secret of their training before each stream."""

from __future__ import annotations

import collections
import threading

import grpc
from google.protobuf.message import DecodeError

from terngrad.cluster import run_secret
from terngrad.service.messages import Hello, Proof

_MOST_NONCES = 1 << 14  # given and not used yet; the oldest are forgotten
_LONGEST = 1 << 10  # bytes of a call

# Of the caller of a ps that has restarted, or forgotten the nonce: it asks for another one.
OUTDATED = "its proof is for a nonce that this ps does not know any more"


class Proofs:
    """The side of a ps; any thread may call."""

    def __init__(self, ps: int, secret: bytes) -> None:
        """Demands this secret of the callers of ps `ps`; if it is empty, they must have none."""
        self._ps, self._secret = ps, secret
        self._nonces: collections.OrderedDict[bytes, None] = collections.OrderedDict()
        self._lock = threading.Lock()

    def prove(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        """Answers a call of Prove: shows the secret, and gives a nonce that is good once."""
        if not self._secret:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, run_secret.UNKNOWN)
        try:
            theirs = Proof.FromString(message[:_LONGEST]).nonce
        except DecodeError:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the message is no Proof")
        nonce = run_secret.new_nonce()
        with self._lock:
            self._nonces[nonce] = None
            if len(self._nonces) > _MOST_NONCES:
                self._nonces.popitem(last=False)
        shown = run_secret.proof(self._secret, _of_ps(self._ps), theirs, nonce)
        return Proof(nonce=nonce, proof=shown).SerializeToString()

    def objection(self, hello: Hello) -> str:
        """Returns what is wrong with the proof in a hello; "" if nothing is."""
        has_proof = hello.HasField("proof")
        if not self._secret:
            return run_secret.UNKNOWN if has_proof else ""
        if not has_proof:
            return run_secret.MISSING
        nonce = hello.proof.nonce
        with self._lock:
            is_known = nonce in self._nonces
            self._nonces.pop(nonce, None)
        speaker = _of_worker(hello.worker, self._ps)
        is_right = run_secret.is_proof(hello.proof.proof, self._secret, speaker, nonce)
        if not is_right:
            return run_secret.DIFFERENT
        return "" if is_known else OUTDATED


def request() -> Proof:
    """Returns what a worker calls Prove with."""
    return Proof(nonce=run_secret.new_nonce())


def proven(hello: Hello, secret: bytes, asked: Proof, answer: bytes) -> Hello | None:
    """Returns a hello with the worker's proof; None if the ps has not shown the secret.

    Args:
      hello: of this worker to the ps.
      secret: of the training.
      asked: what Prove was called with.
      answer: of the ps.
    """
    try:
        given = Proof.FromString(answer)
    except DecodeError:
        return None
    if not run_secret.is_proof(given.proof, secret, _of_ps(hello.ps), asked.nonce, given.nonce):
        return None
    shown = run_secret.proof(secret, _of_worker(hello.worker, hello.ps), given.nonce)
    found = Hello()
    found.CopyFrom(hello)
    found.proof.nonce, found.proof.proof = given.nonce, shown
    return found


def _of_ps(ps: int) -> str:
    return f"ps {ps}"


def _of_worker(worker: int, ps: int) -> str:
    return f"worker {worker} to ps {ps}"
