"""How a process introduces itself to the chief, and each shows the other the secret, if any."""

from __future__ import annotations

from terngrad.cluster import run_secret
from terngrad.cluster.channel import ForeignError, Peer


class UnprovenError(ValueError):
    """A caller has not shown that it belongs to the training; the text is for the caller.

    Attributes:
      fault: what is wrong with the caller, for the chief's own messages.
    """

    def __init__(self, text: str, fault: str) -> None:
        super().__init__(text)
        self.fault = fault


def introduce(chief: Peer, hello: dict, secret: bytes) -> dict | None:
    """Sends a hello, which has a rank; returns the chief's answer, None if it left.

    With a secret an answer other than an error comes from a chief that has the secret, too.
    """
    if not secret:
        chief.send(hello)
        return chief.receive()
    nonce, rank = run_secret.new_nonce(), hello["rank"]
    chief.send({**hello, "nonce": nonce.hex()})
    answer = chief.receive()
    if answer is None or "failed" in answer:
        return answer
    if "proof" not in answer:
        return {"failed": run_secret.UNKNOWN}
    theirs, shown = _octets(answer, "nonce"), _octets(answer, "proof")
    if not run_secret.is_proof(shown, secret, _speaker(0, rank), nonce, theirs):
        chief.send({"proof": ""})  # so that the chief can say why nobody came
        return {"failed": run_secret.DIFFERENT}
    chief.send({"proof": run_secret.proof(secret, _speaker(rank, 0), theirs, nonce).hex()})
    return chief.receive()


class Introductions:
    """The chief's side of all introductions."""

    def __init__(self, secret: bytes) -> None:
        """Callers must show this secret; if it is empty, they must have none."""
        self._secret = secret
        self._asked: dict[Peer, tuple[dict, bytes]] = {}  # for proof: its hello, our nonce

    def hear(self, peer: Peer, message: dict) -> dict | None:
        """Handles a message of a caller.

        Returns:
          Its hello, with `rank` and `hosts`, once it has shown all that it must.

        Raises:
          ForeignError: the message is no introduction.
          UnprovenError: the caller has not the same secret.
        """
        if peer in self._asked:
            return self._checked(message, *self._asked.pop(peer))
        rank, hosts = message.get("rank"), message.get("hosts")
        if type(rank) is not int or rank < 1 or not isinstance(hosts, list):
            raise ForeignError("a message that is no introduction")
        has_secret = "nonce" in message
        if not self._secret and has_secret:
            fault = f"it has a secret ({run_secret.VARIABLE}), this process has none"
            raise UnprovenError(run_secret.UNKNOWN, fault)
        if self._secret and not has_secret:
            fault = f"it was started without the secret ({run_secret.VARIABLE}) of this process"
            raise UnprovenError(run_secret.MISSING, fault)
        if not self._secret:
            return message
        nonce = run_secret.new_nonce()
        self._asked[peer] = message, nonce
        theirs = _octets(message, "nonce")
        shown = run_secret.proof(self._secret, _speaker(0, rank), theirs, nonce)
        peer.send({"nonce": nonce.hex(), "proof": shown.hex()})
        return None

    def forget(self, peer: Peer) -> None:
        """Notes that a caller is gone."""
        self._asked.pop(peer, None)

    def _checked(self, message: dict, hello: dict, nonce: bytes) -> dict:
        theirs, shown = _octets(hello, "nonce"), _octets(message, "proof")
        if run_secret.is_proof(shown, self._secret, _speaker(hello["rank"], 0), nonce, theirs):
            return hello
        raise UnprovenError(run_secret.DIFFERENT, "it has another secret than this process")


def _speaker(rank: int, listener: int) -> str:
    return f"worker {rank} to worker {listener}"


def _octets(message: dict, name: str) -> bytes:
    """Returns bytes that a message holds; b"" if it holds something else."""
    try:
        return bytes.fromhex(message.get(name, ""))
    except (TypeError, ValueError):
        return b""
