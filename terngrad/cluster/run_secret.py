"""A secret that all processes of a training share, and how one shows another that it has it.

A launcher draws it and hands it to the processes that it starts, in their environment, which no
other user can read. It never travels: each side sends a number that nobody has seen before, and the
other side's answer shows that it has the secret. Where nobody shares a secret, as where processes
are started by hand, it is empty.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping

VARIABLE = "TERNGRAD_SECRET"
NONCE_BYTES = 16
_LEAST = 16  # characters

MISSING = (
    "this training was started with a secret, which this process lacks: start it with the same "
    f"launcher, or export the {VARIABLE} of the others"
)
UNKNOWN = f"it was started without a secret, this process with one: export the same {VARIABLE}"
DIFFERENT = f"it has another secret than this process: all need the same {VARIABLE}"


def of_run(environment: Mapping[str, str] = os.environ) -> str:
    """Returns the secret for the processes of a launcher: the user's own, or a new one."""
    return environment.get(VARIABLE) or secrets.token_hex(NONCE_BYTES)


def shared(environment: Mapping[str, str] = os.environ) -> bytes:
    """Returns the secret that this process was started with; b"" without one.

    Raises:
      ValueError: it is so short that others could guess it.
    """
    found = environment.get(VARIABLE, "")
    if found and len(found) < _LEAST:
        raise ValueError(f"{VARIABLE} has {len(found)} characters; allowed are {_LEAST} and more")
    return found.encode()


def new_nonce() -> bytes:
    """Returns a new nonce."""
    return secrets.token_bytes(NONCE_BYTES)


def proof(secret: bytes, speaker: str, *nonces: bytes) -> bytes:
    """Returns a proof that a process has the secret, which does not reveal it.

    Args:
      secret: not empty.
      speaker: who shows it, so that nobody can return what another process has sent.
      nonces: of the process that asks and, perhaps, of this one.
    """
    said = speaker.encode(errors="surrogatepass")  # it may hold whatever an unknown caller sends
    return hmac.digest(secret, b"\n".join([said, *nonces]), hashlib.sha256)


def is_proof(said: bytes, secret: bytes, speaker: str, *nonces: bytes) -> bool:
    """Whether a process has sent the right `proof`."""
    return hmac.compare_digest(said, proof(secret, speaker, *nonces))
