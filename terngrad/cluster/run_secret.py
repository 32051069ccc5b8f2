"""The secret that all processes of a training share, and how one proves to another that it has it.

A launcher draws it and passes it to the processes in their environment, which other users cannot
read. It is never sent: each side sends a nonce, and the answer of the other side proves that it has
the secret. It is empty for processes that were started by hand without one.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Mapping

VARIABLE = "TERNGRAD_SECRET"
NONCE_BYTES = 16
_LEAST = 16  # characters
_CHARACTERS = re.compile(r"[ -~]*")  # a launcher hands it on as a line, and locales differ

MISSING = (
    "this training was started with a secret, which this process lacks: start it with the same "
    f"launcher, or export the {VARIABLE} of the others"
)
UNKNOWN = f"it was started without a secret, this process with one: export the same {VARIABLE}"
DIFFERENT = f"it has another secret than this process: all need the same {VARIABLE}"


def of_run(environment: Mapping[str, str] = os.environ) -> str:
    """Returns the secret for the processes of a launcher: the user's own, or a new one.

    Raises:
      ValueError: the user's own is not allowed; see `shared`.
    """
    return shared(environment).decode() or secrets.token_hex(NONCE_BYTES)


def shared(environment: Mapping[str, str] = os.environ) -> bytes:
    """Returns the secret that this process was started with; b"" without one.

    Raises:
      ValueError: it is so short that others could guess it, or has line ends or characters that are
        not ASCII.
    """
    found = environment.get(VARIABLE, "")
    if found and len(found) < _LEAST:
        raise ValueError(f"{VARIABLE} has {len(found)} characters; allowed are {_LEAST} and more")
    if not _CHARACTERS.fullmatch(found):
        wrong = "has line ends, or characters that are not ASCII"
        raise ValueError(f"{VARIABLE} {wrong}; allowed are letters, digits, blanks and signs")
    return found.encode()


def new_nonce() -> bytes:
    """Returns a new nonce."""
    return secrets.token_bytes(NONCE_BYTES)


def proof(secret: bytes, speaker: str, *nonces: bytes) -> bytes:
    """Returns a proof that a process has the secret, which does not reveal it.

    Args:
      secret: not empty.
      speaker: the process that makes it, so that nobody can replay the proof of another.
      nonces: of the process that asks and, perhaps, of this one; those of strangers must have
        `NONCE_BYTES`. Then one text has one meaning, whatever `speaker` holds.
    """
    said = speaker.encode(errors="surrogatepass")  # it may hold whatever an unknown caller sends
    return hmac.digest(secret, b"\n".join([said, *nonces]), hashlib.sha256)


def is_proof(said: bytes, secret: bytes, speaker: str, *nonces: bytes) -> bool:
    """Whether a process has sent the right `proof`."""
    return hmac.compare_digest(said, proof(secret, speaker, *nonces))
