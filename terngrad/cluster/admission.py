"""How the processes of a training meet: process 0, the chief, listens; the others connect to it.

Any program can connect to an open port. A connection that sends nothing, or garbage, does not delay
the processes of the training. A process of another training gets an error message. With TLS a
process is admitted if its certificate is for its host. If the processes share a secret, each shows
that it has it. A caller that has shown neither learns nothing of the training.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import secrets
import selectors
import socket
import time
from collections.abc import Mapping, Sequence

from terngrad.cluster import run_secret
from terngrad.cluster.addresses import listen
from terngrad.cluster.channel import (
    ForeignError,
    MembershipError,
    OtherFailedError,
    Peer,
    name_of,
    printable,
    split_address,
)
from terngrad.cluster.encrypted import (
    ALL_OR_NONE,
    ChangedError,
    EncryptedSocket,
    Encryption,
    EncryptionError,
)
from terngrad.cluster.introduction import Introductions, UnprovenError, introduce

_RETRY_SECS = 0.2
_CONNECT_SECS = 2.0
_TOKEN, _TOKEN_BYTES = "token", 16
_MOST_STRANGERS = 64  # connections that are not admitted, besides one for each process
_MOST_GONE = 16  # refused connections that are not closed yet
_LONGEST_REASON = 1000  # characters
_GRACE_SECS = 2.0  # lets the chief's own time-out, which says more, arrive first


def join(
    hosts: Sequence[str],
    rank: int,
    address: str,
    timeout_secs: float,
    encryption: Encryption | None = None,
    secret: bytes = b"",
) -> dict[int, Peer]:
    """Meets the other processes; returns when all have joined.

    Args:
      hosts: the host of each process, for messages; all processes need the same list.
      rank: index of this process.
      address: "host:port" at which the chief listens.
      timeout_secs: how long to wait.
      encryption: of all connections; every process must have a certificate for its host.
      secret: that all processes share; see `run_secret`.

    Returns:
      Connections by rank: the chief gets one to each other process, the others one to the chief.

    Raises:
      MembershipError: names the processes that did not join, were refused or cannot be reached.
    """
    if rank == 0:
        return receive_all(listen(*split_address(address)), hosts, timeout_secs, encryption, secret)
    return reach_chief([address], hosts, rank, timeout_secs, encryption, secret)


def receive_all(
    listener: socket.socket,
    hosts: Sequence[str],
    timeout_secs: float,
    encryption: Encryption | None = None,
    secret: bytes = b"",
    failure: str = "",
) -> dict[int, Peer]:
    """Does the chief's part of `join` and closes the listener; see also `tell_failure`."""
    with listener, _Reception(listener, hosts, encryption, secret) as reception:
        reception.fail(failure)
        deadline = time.monotonic() + timeout_secs
        while reception.absent() and (left_secs := deadline - time.monotonic()) > 0:
            reception.serve(left_secs)
        if reception.failure:
            raise OtherFailedError(reception.failure)
        if reception.absent():
            text = reception.complaint(timeout_secs)
            for peer in reception.peers.values():
                peer.send({"failed": text})
            raise MembershipError(text)
        for peer in reception.peers.values():
            peer.trust()
            peer.send({"welcome": True})
        return reception.peers


def reach_chief(
    addresses: Sequence[str],
    hosts: Sequence[str],
    rank: int,
    timeout_secs: float,
    encryption: Encryption | None = None,
    secret: bytes = b"",
    failure: str = "",
) -> dict[int, Peer]:
    """Does the others' part of `join`; tries several addresses of the chief.

    See also `tell_failure`.
    """
    hello = {"rank": rank, "hosts": list(hosts)} | ({"failed": failure} if failure else {})
    deadline = time.monotonic() + timeout_secs
    chief = name_of(0, hosts)
    while True:
        for address in addresses:
            try:
                called = _call(address, timeout_secs, encryption)
                if encryption and (why := called.objection(encryption, hosts[0])):
                    called.close()
                    raise EncryptionError(why)
                return {0: _introduce(called, address, hosts, hello, timeout_secs, secret)}
            except ChangedError as error:
                raise MembershipError(error.between(name_of(rank, hosts), chief)) from None
            except EncryptionError as error:
                raise MembershipError(f"{chief}: {error}") from None
            except OSError as error:
                reason = (
                    f"{chief} cannot be reached at {address} within {timeout_secs:g} s: {error}"
                )
            except ForeignError:
                reason = f"the program at {address} is not a worker of this training"
                if len(addresses) == 1:
                    raise MembershipError(f"{chief}: {reason}") from None
        if time.monotonic() > deadline:
            raise MembershipError(reason)
        time.sleep(_RETRY_SECS)


def tell_failure(
    hosts: Sequence[str],
    rank: int,
    address: str,
    why: str,
    timeout_secs: float,
    encryption: Encryption | None = None,
    secret: bytes = b"",
) -> None:
    """Tells the other processes why this one ends before it has joined them.

    The chief, which they ask, stays until all have come; the others tell the chief.

    Args:
      hosts: see `join`.
      rank: likewise.
      address: likewise.
      why: the reason; in messages it follows the name of this process.
      timeout_secs: how long to try.
      encryption: see `join`.
      secret: likewise.
    """
    with contextlib.suppress(MembershipError, OSError):
        if rank == 0:
            listener, own = listen(*split_address(address)), f"{name_of(0, hosts)} failed: {why}"
            receive_all(listener, hosts, timeout_secs, encryption, secret, own)
        else:
            reach_chief([address], hosts, rank, timeout_secs, encryption, secret, why)


def share_token(
    peers: Mapping[int, Peer], rank: int, timeout_secs: float, secret: bytes = b""
) -> bytes:
    """Returns a token that the chief draws and hands to the others, right after `join`.

    With a secret it cannot be made from what is sent alone.

    Raises:
      MembershipError: the chief left.
    """
    if rank == 0:
        token = secrets.token_bytes(_TOKEN_BYTES)
        for peer in peers.values():
            peer.send({"token": token.hex()})
        return run_secret.proof(secret, _TOKEN, token) if secret else token
    chief = peers[0]
    chief.wait_at_most(timeout_secs + _GRACE_SECS)
    message = chief.receive() or {}
    chief.trust()
    if "token" not in message:
        raise MembershipError("worker 0, the chief, left when all workers had joined")
    token = bytes.fromhex(message["token"])
    return run_secret.proof(secret, _TOKEN, token) if secret else token


def _call(address: str, timeout_secs: float, encryption: Encryption | None) -> Peer:
    connection = socket.create_connection(split_address(address), timeout=_CONNECT_SECS)
    if connection.getsockname() == connection.getpeername():
        # TCP can connect a socket to itself if nothing listens on a port of the outgoing range yet.
        connection.close()
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
    if encryption is None:
        return Peer(connection, rank=0)
    encrypted = EncryptedSocket(connection, encryption.client)
    encrypted.settimeout(timeout_secs)
    try:
        encrypted.handshake()
    except BaseException:
        encrypted.close()
        raise
    return Peer(encrypted, rank=0)


def _introduce(
    chief: Peer, address: str, hosts: Sequence[str], hello: dict, timeout_secs: float, secret: bytes
) -> Peer:
    chief.wait_at_most(timeout_secs + _GRACE_SECS)
    try:
        answer = introduce(chief, hello, secret)
        if answer is None and chief.changed:
            raise chief.changed
        if answer is None:
            answer = {"failed": chief.fault or f"{address}: it left or did not answer"}
        if why := answer.get("failed"):
            if answer.get("ends_all"):
                raise OtherFailedError(why)
            raise MembershipError(f"{name_of(0, hosts)}: {why}")
        if "welcome" not in answer:
            raise ForeignError("the answer is neither a welcome nor an error")
    except ValueError:
        chief.close()
        raise
    chief.trust()
    return chief


class _Reception:
    """The chief's connections: the admitted peers and those that have not introduced themselves.

    One thread serves all. It reads a connection only when data is there, so none can block it.
    """

    def __init__(
        self,
        listener: socket.socket,
        hosts: Sequence[str],
        encryption: Encryption | None,
        secret: bytes = b"",
    ) -> None:
        self.peers: dict[int, Peer] = {}
        self._hosts = hosts
        self._listener = listener
        self._encryption = encryption
        self._shows_secret = bool(secret)
        self._introductions = Introductions(secret)
        self._waiting: dict[Peer, None] = {}  # not admitted yet, the oldest first
        self._new: set[Peer] = set()  # of those, the ones that have sent nothing
        self._gone: collections.deque[Peer] = collections.deque()
        self._refused: dict[int, str] = {}
        self.failure = ""  # why the others, also those that come later, must end
        self._fault = ""  # of the last connection that was refused for what it has not shown
        listener.setblocking(False)  # a caller may have gone before it is accepted
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    def __enter__(self) -> _Reception:
        return self

    def __exit__(self, *exception) -> None:
        """Closes the connections that were not admitted."""
        inside = set(self.peers.values())
        for key in self._selector.get_map().values():
            if key.fileobj is not self._listener and key.fileobj not in inside:
                key.fileobj.close()
        for peer in self._gone:
            peer.close()
        self._selector.close()

    def absent(self) -> list[int]:
        return [rank for rank in range(1, len(self._hosts)) if rank not in self.peers]

    def fail(self, text: str) -> None:
        """Tells the others that they must end, and why; the first reason counts, "" is none."""
        if self.failure or not text:
            return
        self.failure = text
        for peer in self.peers.values():
            peer.send({"failed": text, "ends_all": True})

    def complaint(self, timeout_secs: float) -> str:
        """Says why each absent process has not joined."""
        names = [name_of(rank, self._hosts) for rank in self.absent() if rank not in self._refused]
        texts = list(self._refused.values())
        if names:
            texts.append(f"{', '.join(names)} did not join within {timeout_secs:g} s")
            if self._fault:
                texts.append(f"a process was refused: {self._fault}")
        return "; ".join(texts)

    def serve(self, timeout_secs: float) -> None:
        """Waits for new connections and messages, and handles them."""
        for key, _ in self._selector.select(timeout_secs):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj in self._waiting or key.fileobj in self.peers.values():
                self._hear(key.fileobj)  # it was not sent away in this turn

    def _accept(self) -> None:
        try:
            peer = Peer(self._listener.accept()[0])
        except (BlockingIOError, ConnectionAbortedError):  # it has gone
            return
        except OSError:  # most likely there is no descriptor left
            self._free_descriptors()
            return
        if len(self._waiting) >= len(self._hosts) + _MOST_STRANGERS:
            self._send_away(next(iter(self._waiting)))
        self._new.add(peer)
        self._waiting[peer] = None
        self._selector.register(peer, selectors.EVENT_READ)

    def _hear(self, peer: Peer) -> None:
        try:
            if peer in self._new and not self._secure(peer):
                return
            alive = peer.fill()
            message = peer.next_message()
            if message and peer.rank < 0:
                self._admit(peer, message)
                return
        except ForeignError:
            alive = False
        if not alive:
            self._fault = peer.fault or self._fault
            if not self.failure:  # else it has been told
                self.peers.pop(peer.rank, None)  # it may join again
            self._send_away(peer)

    def _secure(self, peer: Peer) -> bool:
        """Looks whether a new connection uses TLS; returns whether it does as the others do."""
        self._new.discard(peer)
        is_encrypted = peer.is_encrypted()
        if is_encrypted == bool(self._encryption):
            with contextlib.suppress(OSError):
                if self._encryption:
                    peer.encrypt(self._encryption)
                return True
            is_encrypted = None
        if is_encrypted is not None:
            self._fault = f"{'it uses' if is_encrypted else 'without'} TLS: {ALL_OR_NONE}"
            peer.send({"failed": ALL_OR_NONE})
        self._send_away(peer)
        return False

    def _admit(self, peer: Peer, message: dict) -> None:
        try:
            hello = self._introductions.hear(peer, message)
        except UnprovenError as error:
            self._fault = error.fault
            self._refuse(peer, str(error))
            return
        if hello is None:  # it must answer first
            return
        rank = hello["rank"]
        if why := self._objection(rank, hello["hosts"]) or self._doubt(peer, rank):
            self._refuse(peer, why)
        else:
            peer.rank = rank
            self.peers[rank] = peer
            del self._waiting[peer]
            self._refused.pop(rank, None)
            self._note_failure(peer, hello)

    def _note_failure(self, peer: Peer, hello: dict) -> None:
        """Tells a process that all must end, or the others that this one does."""
        if self.failure:
            peer.send({"failed": self.failure, "ends_all": True})
        elif why := hello.get("failed"):
            why = printable(" ".join(str(why).split()), _LONGEST_REASON)
            self.fail(f"{name_of(peer.rank, self._hosts)} failed: {why}")
            if absent := [name_of(rank, self._hosts) for rank in self.absent()]:
                print(f"{self.failure}; {', '.join(absent)} will be told.", flush=True)

    def _refuse(self, peer: Peer, why: str) -> None:
        peer.send({"failed": why})
        self._send_away(peer)

    def _objection(self, rank: int, hosts: list) -> str:
        """Returns why this process cannot join, as far as it may know; "" if it can."""
        name, count, text = name_of(rank, self._hosts), len(self._hosts), ""
        if differs := _differing_hosts(list(self._hosts), hosts):
            text = self._note_other_hosts(rank, differs)
        elif rank >= count:
            text = f"{name} is not among the {count} hosts"
        elif rank in self.peers and not self.failure:
            text = f"{name} has already joined"
        rule = "all processes need the same list of hosts, and each its own index"
        return f"{text}: {rule}" if text else ""

    def _note_other_hosts(self, rank: int, differs: str) -> str:
        """Notes that a process has other hosts; returns what it may know of that."""
        text = f"{name_of(rank, self._hosts)} was refused: {differs}"
        is_new = rank < len(self._hosts) and rank not in self._refused
        if rank < len(self._hosts):
            self._refused[rank] = text
        if self._encryption or self._shows_secret:  # it has shown that it belongs here
            return text
        if is_new:
            print(f"{name_of(0, self._hosts)}: {text}", flush=True)
        return f"worker {rank} was refused: its hosts differ from the chief's, whose log says where"

    def _doubt(self, peer: Peer, rank: int) -> str:
        """Returns why this process is not the one that it says; "" if it is, or without TLS."""
        if not self._encryption or not (why := peer.objection(self._encryption, self._hosts[rank])):
            return ""
        self._refused[rank] = f"{name_of(rank, self._hosts)} was refused: {why}"
        return self._refused[rank]

    def _free_descriptors(self) -> None:
        """Ends the oldest connection that is not admitted; waits a little if there is none."""
        if self._waiting:
            self._send_away(next(iter(self._waiting)))
        if not self._gone:
            time.sleep(_RETRY_SECS)
        while self._gone:
            self._gone.popleft().close()

    def _send_away(self, peer: Peer) -> None:
        """Ends a connection. It is closed later, so that the last message to it is not lost."""
        self._selector.unregister(peer)
        self._new.discard(peer)
        self._waiting.pop(peer, None)
        self._introductions.forget(peer)
        peer.shut()
        self._gone.append(peer)
        if len(self._gone) > _MOST_GONE:
            self._gone.popleft().close()


def _differing_hosts(mine: list, theirs: list) -> str:
    if len(mine) != len(theirs):
        return f"it lists {len(theirs)} hosts, the chief {len(mine)}"
    for i, (here, there) in enumerate(zip(mine, theirs, strict=True)):
        if here != there:
            return f"its host {i} is {printable(there)}, the chief's is {here}"
    return ""
