"""Who takes part in a training, and whether they are alive.

Process 0, the chief, listens; the others connect and stay connected. Before training all compare
facts (flags, layout, parameters) and a difference is named. During training each side says every
second that it lives. A process that dies, hangs or cannot be reached any more ends the others, with
its name: also when they are stuck in a collective that waits for it, for a thread of its own
watches, and ends its process.

Messages are lines of JSON. The network must be trusted, as TensorFlow's own collectives demand.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence

_BEAT_SECS = 1.0
_RETRY_SECS = 0.2
_LONGEST_MESSAGE = 1 << 20  # bytes
_EXIT_CODE = 1

Facts = Mapping[str, str]


class MembershipError(ValueError):
    """Names the process that is missing, different or lost."""


def end_process(message: str) -> None:
    """Ends this process at once, even if TensorFlow holds its main thread."""
    print(message, file=sys.stderr, flush=True)
    os._exit(_EXIT_CODE)


class Membership(contextlib.AbstractContextManager):
    """This process' place among all, from joining to leaving.

    As a context it leaves at the end of the block; after an exception the others learn its text.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        rank: int,
        address: str,
        timeout_secs: float,
        on_loss: Callable[[str], None] = end_process,
    ) -> None:
        """Joins; returns when all processes have.

        Args:
          hosts: of each process, for messages.
          rank: index of this process.
          address: "host:port" at which the chief listens.
          timeout_secs: how long to wait for a process, when joining and later.
          on_loss: called from a thread, once, with what happened to another process.

        Raises:
          MembershipError: names the processes that cannot be reached in time.
        """
        self._hosts = hosts
        self._rank = rank
        self._timeout_secs = timeout_secs
        self._on_loss = on_loss
        self._lock = threading.Lock()
        self._over = False
        self._peers: dict[int, _Peer] = {}
        if rank == 0:
            self._welcome(address)
        else:
            self._connect(address)
        for peer in self._peers.values():
            threading.Thread(target=self._listen, args=(peer,), daemon=True).start()
        threading.Thread(target=self._watch, daemon=True).start()

    def agree(self, facts: Facts) -> None:
        """Compares facts with the chief's; all processes call this as many times.

        Raises:
          MembershipError: names the process, the fact, and both values.
        """
        if self._rank:
            chief = self._peers[0]
            chief.send({"facts": dict(facts)})
            verdict = self._next_answer(chief)["verdict"]
        else:
            verdict = self._compare(facts)
            for peer in self._peers.values():
                peer.send({"verdict": verdict})
        if verdict:
            self._leave({"bye": True})
            raise MembershipError(verdict)

    def await_loss(self) -> None:
        """Waits for the watcher to find, and act on, the process because of which an operation
        between the processes failed; returns after the time-out if all seem alive.
        """
        deadline = time.monotonic() + self._timeout_secs + 2 * _BEAT_SECS
        while time.monotonic() < deadline:
            time.sleep(_RETRY_SECS)

    def __exit__(self, kind, error, traceback) -> None:
        """Tells the others that this process ends, and why."""
        # A worker exits, with whatever status, where all do: at the end, or when all were stopped.
        if error is None or isinstance(error, SystemExit):
            self._leave({"bye": True})
        else:
            text = " ".join(str(error).split()) or kind.__name__
            self._leave({"failed": text})

    def _welcome(self, address: str) -> None:
        host, port = split_address(address)
        deadline = time.monotonic() + self._timeout_secs
        try:
            listener = socket.create_server(("", port))
        except OSError as error:
            raise MembershipError(f"{host}:{port}: cannot listen there: {error.strerror}") from None
        with listener:
            while len(self._peers) < len(self._hosts) - 1:
                listener.settimeout(max(0.01, deadline - time.monotonic()))
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    missing = [
                        self._name(i) for i in range(1, len(self._hosts)) if i not in self._peers
                    ]
                    text = f"{', '.join(missing)} did not come within {self._timeout_secs:g} s"
                    self._tell({"failed": text})
                    raise MembershipError(text) from None
                self._admit(connection, deadline)
        self._tell({"welcome": True})

    def _admit(self, connection: socket.socket, deadline: float) -> None:
        """Takes a process in; what does not speak the protocol is sent away."""
        peer = _Peer(connection)
        connection.settimeout(max(0.01, min(2.0, deadline - time.monotonic())))
        hello = peer.receive() or {}
        rank = hello.get("rank")
        if not isinstance(rank, int) or not 0 < rank < len(self._hosts):
            peer.close()
        elif rank in self._peers or hello.get("hosts") != list(self._hosts):
            same = f"{self._name(rank)} is here already" if rank in self._peers else "other hosts"
            peer.send({"failed": f"{same}: all processes need the same hosts, each its own index"})
            peer.close()
        else:
            connection.settimeout(None)
            peer.rank = rank
            self._peers[rank] = peer

    def _connect(self, address: str) -> None:
        host, port = split_address(address)
        deadline = time.monotonic() + self._timeout_secs
        while True:
            try:
                connection = socket.create_connection((host, port), timeout=_BEAT_SECS)
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise MembershipError(
                        f"{self._name(0)} cannot be reached at {host}:{port} "
                        f"within {self._timeout_secs:g} s: {error}"
                    ) from None
                time.sleep(_RETRY_SECS)
        chief = _Peer(connection)
        chief.rank = 0
        connection.settimeout(self._timeout_secs + 2 * _BEAT_SECS)
        chief.send({"rank": self._rank, "hosts": list(self._hosts)})
        answer = chief.receive()
        if not answer or "welcome" not in answer:
            reason = (answer or {}).get("failed", "it closed the connection")
            raise MembershipError(f"{self._name(0)}: {reason}")
        connection.settimeout(None)
        self._peers[0] = chief

    def _compare(self, facts: Facts) -> str:
        for rank, peer in sorted(self._peers.items()):
            theirs = self._next_answer(peer)["facts"]
            if text := difference(facts, theirs, self._name(0), self._name(rank)):
                return text
        return ""

    def _next_answer(self, peer: _Peer) -> dict:
        try:
            return peer.answers.get(timeout=self._timeout_secs + 2 * _BEAT_SECS)
        except queue.Empty:
            name = self._name(peer.rank)
            raise MembershipError(f"{name} gave no answer in {self._timeout_secs:g} s") from None

    def _listen(self, peer: _Peer) -> None:
        while True:
            message = peer.receive()
            peer.heard_at = time.monotonic()
            if message is None:
                if not peer.left:
                    self._lose(peer.rank, f"{self._name(peer.rank)} died: its connection closed")
                return
            if "failed" in message:
                self._lose(peer.rank, f"{self._name(peer.rank)} failed: {message['failed']}")
            elif "lost" in message:
                self._lose(peer.rank, message["lost"])
            elif "bye" in message:
                peer.left = True
            elif "beat" not in message:
                peer.answers.put(message)

    def _watch(self) -> None:
        while not self._over:
            time.sleep(_BEAT_SECS)
            for peer in list(self._peers.values()):
                peer.send({"beat": True})
                silent = time.monotonic() - peer.heard_at
                if not peer.left and silent > self._timeout_secs:
                    name = self._name(peer.rank)
                    self._lose(
                        peer.rank, f"{name} hangs: nothing was heard of it for {silent:.0f} s"
                    )

    def _lose(self, rank: int, text: str) -> None:
        with self._lock:
            if self._over:
                return
            self._over = True
        if self._rank == 0:
            self._tell({"lost": text}, but=rank)
        self._on_loss(f"{self._name(self._rank)} ends: {text}")

    def _leave(self, message: dict) -> None:
        """Says a last word; the chief, who passes words on, waits for the others' first."""
        deadline = time.monotonic() + self._timeout_secs
        if "bye" in message and self._rank == 0:
            while any(not peer.left for peer in self._peers.values()):
                if self._over or time.monotonic() > deadline:
                    break
                time.sleep(_RETRY_SECS / 10)
        with self._lock:
            self._over = True
        self._tell(message if self._rank or "bye" in message else {"failed": message["failed"]})
        for peer in self._peers.values():
            peer.left = True
            peer.shut()

    def _tell(self, message: dict, but: int = -1) -> None:
        for rank, peer in self._peers.items():
            if rank != but:
                peer.send(message)

    def _name(self, rank: int) -> str:
        return f"worker {rank} ({self._hosts[rank]})"


class _Peer:
    """A connection to another process."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rank = -1
        self.heard_at = time.monotonic()
        self.left = False
        self.answers: queue.Queue[dict] = queue.Queue()
        self._connection = connection
        self._file = connection.makefile("rb")
        self._sending = threading.Lock()

    def send(self, message: dict) -> None:
        """Sends; a broken connection shows when receiving."""
        with self._sending, contextlib.suppress(OSError):
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict | None:
        """The next message; None where the connection ended or is no such connection."""
        try:
            line = self._file.readline(_LONGEST_MESSAGE)
            message = json.loads(line) if line.endswith(b"\n") else None
        except (OSError, ValueError):
            return None
        return message if isinstance(message, dict) else None

    def shut(self) -> None:
        """Ends sending; what was sent still arrives."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.close()


def difference(mine: Facts, theirs: Facts, my_name: str, their_name: str) -> str:
    """Says which fact differs between two processes, and how; "" if none does."""
    for name in sorted(mine.keys() | theirs.keys()):
        here, there = mine.get(name, "nothing"), theirs.get(name, "nothing")
        if here != there:
            return f"{name} is {there} on {their_name} and {here} on {my_name}"
    return ""


def split_address(address: str) -> tuple[str, int]:
    """Returns host and port of "host:port", also of "[::1]:2222".

    Raises:
      MembershipError: if it is not of that form.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise MembershipError(f"{address!r} must be host:port, with a port of 1 to 65535")
    return host.strip("[]"), int(port)
