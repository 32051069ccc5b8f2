"""The introduction of two processes: who connects to whom, and proofs of the secret, if any.

All are frames: 4 bytes of length, little-endian, then JSON. The caller sends `MAGIC` and its hello.
Where there is a secret, the listener answers with a nonce and the proof that it has the secret, and
the caller with its own proof. The last frame is the listener's:
a welcome, or why it refuses. docs/wire-format.md describes the bytes.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Generator, Mapping, Sequence

from terngrad.cluster import run_secret
from terngrad.cluster.errors import escaped

VERSION = 16
MAGIC = b"terngrad\n"
NO_INTRODUCTION = "it did not introduce itself"
SIZE_BYTES = 4
LONGEST = 1 << 16  # bytes of a frame; a listener keeps at most this many of an unknown caller
LONGEST_HOSTS = LONGEST - (1 << 13)  # bytes of a hello's lists of hosts, so that the rest fits
_LONGEST_TIMEOUT_SECS = 1e9
_REFUSES = " refused"  # suffix of what a listener signs if it will refuse the caller
_LARGEST_INDEX = 1 << 32

# Purposes of a worker's two streams to a ps.
EXCHANGE = "Exchange"
COORDINATION = "Meet"  # as earlier versions name it


@dataclasses.dataclass(frozen=True)
class Hello:
    """Who connects to whom, in which training, and what for.

    Attributes:
      purpose: of the connection, such as `EXCHANGE`.
      worker: index of the calling worker.
      callee: index of the process that it calls: of a ps if there are ps hosts, else of a worker.
      worker_hosts: "host:port" of each worker.
      ps_hosts: "host:port" of each ps.
      rules: how steps are made, from the flags; "" accepts any.
      timeout_secs: time after which the caller counts a silent process as lost.
      failed: why the caller has failed before it could join; "" = it has not.
      version: of the wire format.
    """

    purpose: str
    worker: int
    callee: int
    worker_hosts: Sequence[str]
    ps_hosts: Sequence[str] = ()
    rules: str = ""
    timeout_secs: float = 60.0
    failed: str = ""
    version: int = VERSION

    @property
    def proof_names(self) -> tuple[str, str]:
        """The names of the caller and of the called process in proofs."""
        kind = "ps" if self.ps_hosts else "worker"
        called = f"{kind} {self.callee}"
        caller = f"worker {self.worker}"
        hosts = ",".join([*self.ps_hosts, *self.worker_hosts])  # trainings may share a secret
        of = f"for {self.purpose} of {hosts}"
        return f"{caller} to {called} {of}", f"{called} to {caller} {of}"


def why_too_long(worker_hosts: Sequence[str], ps_hosts: Sequence[str]) -> str:
    """Returns why a hello cannot have these lists of hosts; "" if it can."""
    hosts = [*worker_hosts, *ps_hosts]
    if (size := len(json.dumps(hosts))) <= LONGEST_HOSTS:
        return ""
    allowed = f"allowed are {LONGEST_HOSTS}: fewer processes, or shorter names"
    return f"the list of {len(hosts)} hosts has {size} bytes as JSON; {allowed}"


class AdmissionError(Exception):
    """A caller is refused.

    Attributes:
      short: the text for a caller that has not proved that it belongs to the training; "" = the
        same.
      again: whether it may try again.
      fault: what is wrong with it, for this process' own messages.
      hello: of the caller, if it has shown that it belongs to the training; else None.
    """

    def __init__(self, why: str, short: str = "", *, again: bool = False, fault: str = "") -> None:
        super().__init__(why)
        self.short, self.again, self.fault = short, again, fault or why
        self.hello: Hello | None = None


class AuthenticationError(AdmissionError):
    """A listener has not proved that it has the secret."""


class ForeignProgramError(AuthenticationError):
    """Another program listens there."""


def frame(message: Mapping[str, object]) -> bytes:
    """Returns the bytes of a message."""
    text = json.dumps(message).encode()
    return len(text).to_bytes(SIZE_BYTES, "little") + text


def read(text: bytes) -> dict:
    """Returns the message in a frame, without its length; an empty one if it is malformed."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _hello_in(said: Mapping[str, object]) -> Hello | None:
    """Returns the hello in a message, of any version; None if there is none."""
    if not isinstance(version := said.get("version"), int) or version != VERSION:
        is_other = isinstance(version, int) and 0 < version < _LARGEST_INDEX
        return Hello("", 0, 0, (), version=version) if is_other else None
    names = [field.name for field in dataclasses.fields(Hello)]
    found = {name: said.get(name) for name in names}
    for name in ("worker", "callee"):
        if type(found[name]) is not int or not 0 <= found[name] < _LARGEST_INDEX:
            return None
    for name in ("worker_hosts", "ps_hosts"):
        if not isinstance(found[name], list) or not all(isinstance(h, str) for h in found[name]):
            return None
    if not _is_timeout(found["timeout_secs"]):
        return None
    if not all(isinstance(found[name], str) for name in ("purpose", "rules", "failed")):
        return None
    return Hello(**found)


def receive_hello(
    send: Callable[[bytes], object], check: Callable[[Hello], None], secret: bytes
) -> Generator[int, bytes, Hello]:
    """Receives an introduction, as a part of a `Greeting`; returns the caller's hello.

    Args:
      send: sends bytes to the caller.
      check: raises AdmissionError if a hello is not right. Where there is a secret, the caller
        gets this error only after it has proved that it has the secret.
      secret: of the training; b"" = none.

    Raises:
      AdmissionError: the caller does not belong to the training.
    """
    for octet in MAGIC:
        if (yield 1)[0] != octet:
            raise AdmissionError(NO_INTRODUCTION)
    said = yield from _receive_frame()
    if (hello := _hello_in(said)) is None:
        raise AdmissionError(NO_INTRODUCTION)
    if hello.version != VERSION:
        raise AdmissionError(f"its version is {hello.version}; allowed is {VERSION}")
    theirs = _nonce(said)
    if not secret and theirs:
        fault = f"it has a secret ({run_secret.VARIABLE}), this process has none"
        raise AdmissionError(run_secret.UNKNOWN, fault=fault)
    wrong = _objection(check, hello)
    if secret:
        if not theirs:
            fault = f"it was started without the secret ({run_secret.VARIABLE}) of this process"
            raise AdmissionError(run_secret.MISSING, fault=fault)
        caller, called = hello.proof_names
        # Otherwise a program could relay the proof of one process to another.
        called += _REFUSES if wrong else ""
        nonce = run_secret.new_nonce()
        shown = run_secret.proof(secret, called, theirs, nonce)
        send(frame({"nonce": nonce.hex(), "proof": shown.hex()}))
        proof = _octets((yield from _receive_frame()), "proof")
        if not run_secret.is_proof(proof, secret, caller, nonce, theirs):
            fault = "it has another secret than this process"
            raise AdmissionError(run_secret.DIFFERENT, fault=fault)
        wrong = wrong or _objection(check, hello)  # its certificate may be revoked by now
    if wrong:
        wrong.hello = hello
        raise wrong
    return hello


def introduce(
    hello: Hello, secret: bytes, send: Callable[[bytes], object], receive: Callable[[], dict]
) -> float:
    """Introduces this process to another; returns the time after which that counts it as lost.

    Args:
      hello: of this process.
      secret: that the other must have, too; b"" = none.
      send: sends bytes.
      receive: returns the next message.

    Raises:
      AdmissionError: the other refuses this process, or has not the same secret.
      OSError: of `send` and `receive`.
    """
    nonce = run_secret.new_nonce() if secret else b""
    send(MAGIC + frame(dataclasses.asdict(hello) | ({"nonce": nonce.hex()} if secret else {})))
    answer = receive()
    if secret and "refused" not in answer:
        if "proof" not in answer:
            raise AuthenticationError(run_secret.UNKNOWN)
        caller, called = hello.proof_names
        theirs, shown = _nonce(answer), _octets(answer, "proof")
        refuses = run_secret.is_proof(shown, secret, called + _REFUSES, nonce, theirs)
        accepts = run_secret.is_proof(shown, secret, called, nonce, theirs)
        if not theirs or not (refuses or accepts):
            send(frame({"proof": ""}))  # so that the other can say why this process did not join
            raise AuthenticationError(run_secret.DIFFERENT)
        send(frame({"proof": run_secret.proof(secret, caller, theirs, nonce).hex()}))
        answer = receive()
        if refuses and "refused" not in answer:
            raise AuthenticationError(run_secret.DIFFERENT)
    if "welcome" not in answer:
        if "refused" not in answer:
            raise ForeignProgramError("the program there is not a process of this training")
        why = escaped(" ".join(str(answer["refused"]).split()), LONGEST)
        raise AdmissionError(why, again=bool(answer.get("again")))
    timeout_secs = answer["welcome"]
    return float(timeout_secs) if _is_timeout(timeout_secs) else hello.timeout_secs


def _objection(check: Callable[[Hello], None], hello: Hello) -> AdmissionError | None:
    try:
        check(hello)
    except AdmissionError as error:
        return error
    return None


def _is_timeout(said: object) -> bool:
    return type(said) in (int, float) and 0 < said < _LONGEST_TIMEOUT_SECS


def _receive_frame() -> Generator[int, bytes, dict]:
    size = int.from_bytes((yield SIZE_BYTES), "little")
    if not 0 < size <= LONGEST:
        raise AdmissionError(NO_INTRODUCTION)
    return read((yield size))


def _nonce(message: Mapping[str, object]) -> bytes:
    """Returns the nonce in a message; b"" if there is none, or one of another length.

    A longer one could hold parts of a text that another process has signed.
    """
    found = _octets(message, "nonce")
    return found if len(found) == run_secret.NONCE_BYTES else b""


def _octets(message: Mapping[str, object], name: str) -> bytes:
    """Returns a bytes field of a message; b"" if the field is malformed."""
    try:
        return bytes.fromhex(message.get(name, ""))
    except (TypeError, ValueError):
        return b""
