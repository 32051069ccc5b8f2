"""Connects the processes of a training: process 0, the chief, listens; the others connect to it.

Any program can connect to an open port. A connection that sends nothing, or garbage, does not delay
the processes of the training. A process of another training gets an error message. With TLS a
process is admitted if its certificate is for its host. If the processes share a secret, each proves
that it has it. A caller without such a proof learns nothing about the training.

Without TLS the network must be trusted, as for MPI. Other programs may still connect by mistake,
and must do no harm.
"""

from __future__ import annotations

import contextlib
import json
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from terngrad.cluster import run_secret
from terngrad.cluster.addresses import name_of, split_address
from terngrad.cluster.errors import (
    LONGEST_REASON,
    MembershipError,
    OtherFailedError,
    escaped,
)
from terngrad.cluster.progress import OperationProgress
from terngrad.connect.acceptor import AnySocket
from terngrad.connect.calling import connect
from terngrad.connect.channel import Channel, FrameError
from terngrad.connect.config import ConnectConfig
from terngrad.connect.introduction import (
    NO_INTRODUCTION,
    AdmissionError,
    ForeignProgramError,
    Hello,
)
from terngrad.connect.listener import Listener
from terngrad.connect.log_limiter import LogLimiter
from terngrad.connect.tls import ChangedError, EncryptionError

LONGEST_MESSAGE = 1 << 20  # bytes
_PURPOSE = "Membership"
_FOREVER_SECS = 1e8  # no limit until `Membership` watches the connection
_RETRY_SECS = 0.2
_MAX_WAITING = 64  # connections that are not admitted, besides one for each process
_GRACE_SECS = 2.0  # so that the chief's time-out, whose error says more, comes first
_RULE = "all processes need the same list of hosts, and each its own index"


class Peer:
    """A connection to another process.

    Attributes:
      rank: index of the other process.
      channel: carries the messages.
      received_at: time of its last message, on the clock of the watching `Membership`.
      batches: its last reported progress; see `ProcessProgress`.
      left: whether it announced that it ends.
      is_leaving: whether it has begun its last operation, and may still wait for others to leave.
      operations: its last reported operations with the others.
      answers: its messages other than heartbeats; None after the last one.
    """

    def __init__(self, channel: Channel, rank: int) -> None:
        """Takes ownership of a channel."""
        self.rank = rank
        self.received_at = 0.0
        self.batches: int | None = None
        self.left = False
        self.is_leaving = False
        self.operations = OperationProgress()
        self.answers: queue.Queue[dict | None] = queue.Queue()
        self.channel = channel

    def send(self, message: dict) -> None:
        """Sends a message; a broken connection shows only in `receive`."""
        with contextlib.suppress(OSError):
            self.channel.send(json.dumps(message).encode())

    def receive(self) -> dict | None:
        """Waits for the next message; returns None if the connection ended.

        Raises:
          FrameError: the data received is not a message.
        """
        try:
            text = next(iter(self.channel), None)
            message = None if text is None else json.loads(bytes(text))
        except FrameError:
            raise
        except (ValueError, RecursionError):
            raise FrameError("a message that is not JSON") from None
        if message is not None and not isinstance(message, dict):
            raise FrameError("a message that is not a JSON object")
        return message

    def close(self) -> None:
        """Ends the connection; messages already sent still arrive."""
        self.channel.cut()


_TOKEN, _TOKEN_BYTES = "token", 16


def join(config: ConnectConfig, address: str) -> dict[int, Peer]:
    """Connects to the other processes; returns when all have joined.

    Args:
      config: of this process; its time-out limits the wait for the others.
      address: "host:port" at which the chief listens.

    Returns:
      Connections by rank: the chief gets one to each other process, the others one to the chief.

    Raises:
      MembershipError: names the processes that did not join, were refused or cannot be reached.
    """
    if config.rank == 0:
        return receive_all(config, config.listen(*split_address(address)))
    return reach_chief(config, [address])


def receive_all(
    config: ConnectConfig, listening: socket.socket, failure: str = ""
) -> dict[int, Peer]:
    """Runs the chief's part of `join` and closes the socket; see also `report_failure`."""
    with ChiefListener(config, listening) as chief:
        chief.fail(failure)
        all_came = chief.wait(config.timeout_secs)
        if chief.failure:
            raise OtherFailedError(chief.failure)
        if not all_came:
            text = chief.complaint(config.timeout_secs)
            for peer in chief.peers.values():
                peer.send({"failed": text})
            raise MembershipError(text)
        for peer in chief.peers.values():
            peer.send({"joined": True})
        return chief.peers


def reach_chief(
    config: ConnectConfig, addresses: Sequence[str], failure: str = ""
) -> dict[int, Peer]:
    """Runs the other processes' part of `join`; tries several addresses of the chief.

    See also `report_failure`.
    """
    hello = config.hello(_PURPOSE, 0, failed=failure[:LONGEST_REASON])
    deadline = time.monotonic() + config.timeout_secs
    last_answer, chief = deadline + _GRACE_SECS, name_of(0, config.worker_hosts)
    while True:
        for address in addresses:
            try:
                connected, _ = connect(config, split_address(address), hello, last_answer)
                peer = Peer(Channel(connected, LONGEST_MESSAGE, _FOREVER_SECS), rank=0)
                return {0: _joined(config, peer, address)}
            except ChangedError as error:
                raise MembershipError(error.between(config.name, chief)) from None
            except EncryptionError as error:
                raise MembershipError(f"{chief}: {error}") from None
            except (ForeignProgramError, FrameError):
                reason = f"the program at {address} is not a worker of this training"
                if len(addresses) == 1:
                    raise MembershipError(f"{chief}: {reason}") from None
            except AdmissionError as error:
                raise MembershipError(f"{chief}: {error}") from None
            except OSError as error:
                within = f"within {config.timeout_secs:g} s"
                reason = f"{chief} cannot be reached at {address} {within}: {error}"
        if time.monotonic() > deadline:
            raise MembershipError(reason)
        time.sleep(_RETRY_SECS)


def report_failure(config: ConnectConfig, address: str, why: str) -> None:
    """Reports to the other processes why this one ends before it has joined them.

    The chief stays until all others have asked it; another process reports to the chief.

    Args:
      config: of this process; its time-out limits the attempt.
      address: see `join`.
      why: the reason; in messages it follows the name of this process.
    """
    with contextlib.suppress(MembershipError, OSError):
        if config.rank == 0:
            listening = config.listen(*split_address(address))
            receive_all(config, listening, f"{config.name} failed: {why}")
        else:
            reach_chief(config, [address], why)


def share_token(config: ConnectConfig, peers: Mapping[int, Peer]) -> bytes:
    """Returns a token that the chief draws and sends to the others, right after `join`.

    With a secret nobody can derive it from the messages alone.

    Raises:
      MembershipError: the chief left.
    """
    if config.rank == 0:
        token = secrets.token_bytes(_TOKEN_BYTES)
        for peer in peers.values():
            peer.send({"token": token.hex()})
    else:
        chief = peers[0]
        chief.channel.limit_silence(config.timeout_secs + _GRACE_SECS)
        message = chief.receive() or {}
        chief.channel.limit_silence(_FOREVER_SECS)
        if "token" not in message:
            raise MembershipError("worker 0, the chief, left when all workers had joined")
        token = bytes.fromhex(message["token"])
    return run_secret.proof(config.secret, _TOKEN, token) if config.secret else token


def _joined(config: ConnectConfig, chief: Peer, address: str) -> Peer:
    """Waits until all have joined, or the chief says why they have not."""
    chief.channel.limit_silence(config.timeout_secs + _GRACE_SECS)
    answer = chief.receive()
    if answer is None and chief.channel.changed:
        raise chief.channel.changed
    if answer is None:
        answer = {"failed": chief.channel.fault or f"{address}: it left or did not answer"}
    if why := answer.get("failed"):
        if answer.get("ends_all"):
            raise OtherFailedError(why)
        raise MembershipError(f"{name_of(0, config.worker_hosts)}: {why}")
    if "joined" not in answer:
        raise FrameError("the answer is neither a welcome nor an error")
    chief.channel.limit_silence(_FOREVER_SECS)
    return chief


class ChiefListener:
    """Admits the other processes; as a context manager it listens until the block ends.

    Attributes:
      peers: the admitted processes, by rank.
      failure: why all must end, also those that connect later; "" = they need not.
    """

    def __init__(self, config: ConnectConfig, listening: socket.socket) -> None:
        """Takes a listening socket; admits nobody yet."""
        self.peers: dict[int, Peer] = {}
        self.failure = ""
        self._hosts = list(config.worker_hosts)
        self._refused: dict[int, str] = {}
        self._fault = ""  # of the last refused caller without a proof or certificate
        self._changed = threading.Condition()
        self._listener = Listener(
            listening,
            config,
            {_PURPOSE: self._take},
            self._check,
            LogLimiter(self._say),
            max_connections=_MAX_WAITING,
            on_refused=self._note_refusal,
        )

    def __enter__(self) -> ChiefListener:
        self._listener.start()
        return self

    def __exit__(self, *exception) -> None:
        self._listener.close()

    def absent(self) -> list[int]:
        """The processes that have not connected, or have left again."""
        with self._changed:
            if not self.failure:  # else they know it and may leave
                for rank in [rank for rank, peer in self.peers.items() if peer.channel.has_left]:
                    del self.peers[rank]
            return [rank for rank in range(1, len(self._hosts)) if rank not in self.peers]

    def wait(self, timeout_secs: float) -> bool:
        """Waits until all have connected; returns whether they have."""
        deadline = time.monotonic() + timeout_secs
        with self._changed:
            while self.absent():
                if (left_secs := deadline - time.monotonic()) <= 0:
                    return False
                self._changed.wait(min(left_secs, _RETRY_SECS))
            return True

    def fail(self, text: str) -> None:
        """Sends the others the reason why they must end; only the first one counts, "" is none."""
        with self._changed:
            if self.failure or not text:
                return
            self.failure = text
            for peer in self.peers.values():
                peer.send({"failed": text, "ends_all": True})

    def complaint(self, timeout_secs: float) -> str:
        """Says why each absent process has not joined."""
        absent = self.absent()
        names = [name_of(rank, self._hosts) for rank in absent if rank not in self._refused]
        # Also of a second process 0, but not of a caller that claimed the rank of a joined process.
        texts = [text for rank, text in self._refused.items() if rank in (0, *absent)]
        if names:
            texts.append(f"{', '.join(names)} did not join within {timeout_secs:g} s")
            if self._fault:
                texts.append(f"a process was refused: {self._fault}")
        return "; ".join(texts)

    def _check(self, hello: Hello) -> None:
        rank, name = hello.worker, name_of(hello.worker, self._hosts)
        if hello.callee or hello.ps_hosts:
            raise AdmissionError(f"{name} looks for another process than the chief")
        if differs := _differing_hosts(self._hosts, list(hello.worker_hosts)):
            text = f"{name} was refused: {differs}"
            short = f"worker {rank} was refused: its hosts differ from the chief's, whose log says "
            raise AdmissionError(f"{text}: {_RULE}", f"{short}where: {_RULE}", fault=text)
        if not 0 < rank < len(self._hosts):
            raise AdmissionError(f"{name} is not among the {len(self._hosts)} hosts: {_RULE}")

    def _take(self, hello: Hello, connection: AnySocket, address: str) -> Callable[[], object]:
        """See `listener.Open`."""
        del address
        rank = hello.worker
        with self._changed:
            there = self.peers.get(rank)
            if there and not self.failure and not there.channel.has_left:
                raise AdmissionError(f"{name_of(rank, self._hosts)} has already joined: {_RULE}")
        peer = Peer(Channel(connection, LONGEST_MESSAGE, _FOREVER_SECS), rank)
        return lambda: self._add(peer, hello.failed)

    def _add(self, peer: Peer, failed: str) -> None:
        """Adds a process; sends it the failure, or the others its failure, if there is one."""
        with self._changed:
            self.peers[peer.rank] = peer
            self._refused.pop(peer.rank, None)
            self._changed.notify_all()
            if self.failure:
                peer.send({"failed": self.failure, "ends_all": True})
            elif failed:
                why = escaped(" ".join(failed.split()), LONGEST_REASON)
                self.fail(f"{name_of(peer.rank, self._hosts)} failed: {why}")
                if absent := [name_of(rank, self._hosts) for rank in self.absent()]:
                    print(f"{self.failure}; {', '.join(absent)} will be informed.", flush=True)

    def _note_refusal(self, hello: Hello | None, why: str) -> None:
        with self._changed:
            if hello is None:
                self._fault = self._fault if why == NO_INTRODUCTION else why
            elif hello.worker < len(self._hosts) and " was refused: " in why:
                self._refused[hello.worker] = why

    def _say(self, text: str) -> None:
        print(f"{name_of(0, self._hosts)}: {text}", flush=True)


def _differing_hosts(mine: list, theirs: list) -> str:
    if len(mine) != len(theirs):
        return f"it lists {len(theirs)} hosts, the chief {len(mine)}"
    for i, (here, there) in enumerate(zip(mine, theirs, strict=True)):
        if here != there:
            return f"its host {i} is {escaped(there)}, the chief's is {here}"
    return ""
