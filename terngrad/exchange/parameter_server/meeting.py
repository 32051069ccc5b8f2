"""A worker's end of the relay: connections to its peers, as `Membership` watches them."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Sequence

import grpc

from terngrad.exchange.channel import ForeignError, MembershipError, name_of
from terngrad.exchange.parameter_server.messages import Word
from terngrad.exchange.parameter_server.streams import Outbox


class RelayedPeer:
    """What `channel.Peer` is to a worker that can be reached, for one behind ps 0."""

    def __init__(self, rank: int, meeting: Meeting) -> None:
        """Talks through the meeting with the worker of this index."""
        self.rank = rank
        self.heard_at = 0.0
        self.batches: int | None = None
        self.left = False
        self.answers: queue.Queue[dict | None] = queue.Queue()
        self._inbox: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._meeting = meeting

    def hear(self, text: str | None) -> None:
        """Takes what the ps passed on; None where there will be nothing more."""
        self._inbox.put(text)

    def send(self, message: dict) -> None:
        """Sends; a broken connection shows when receiving."""
        self._meeting.send(Word(peer=self.rank, text=json.dumps(message)))

    def receive(self) -> dict | None:
        """Waits for the next message; None where the connection ended.

        Raises:
          ForeignError: what came is no message.
        """
        if (text := self._inbox.get()) is None:
            return None
        try:
            message = json.loads(text)
        except (ValueError, RecursionError):
            raise ForeignError("a word that is not JSON") from None
        if not isinstance(message, dict):
            raise ForeignError("a word that holds no object")
        return message

    def shut(self) -> None:
        """Ends sending; what was sent still arrives."""
        self._meeting.shut(self.rank)

    def close(self) -> None:
        """Ends the connection."""
        self.shut()
        self.hear(None)


class Meeting:
    """This worker's Meet stream.

    Attributes:
      peers: the chief's connections to all others by rank; of others, that to the chief.
    """

    def __init__(
        self,
        call: grpc.Call,
        outbox: Outbox,
        rank: int,
        worker_hosts: Sequence[str],
        on_end: Callable[[], None],
    ) -> None:
        """Takes over a stream; calls `on_end`, from a thread, if it ends unasked."""
        self._call, self._outbox = call, outbox
        self._hosts = worker_hosts
        self._on_end = on_end
        self._absent = set(range(len(worker_hosts)))
        self._changed = threading.Condition()
        others = range(1, len(worker_hosts)) if rank == 0 else [0]
        self.peers = {other: RelayedPeer(other, self) for other in others}
        self._open = set(self.peers)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for_all(self, timeout_secs: float) -> None:
        """Returns when all workers have come.

        Raises:
          MembershipError: names those that did not.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._absent, timeout_secs)
            if self._absent:
                names = ", ".join(name_of(rank, self._hosts) for rank in sorted(self._absent))
                raise MembershipError(f"{names} did not come within {timeout_secs:g} s")

    def send(self, word: Word) -> None:
        """Sends a word to a peer."""
        self._outbox.put(word.SerializeToString())

    def shut(self, rank: int) -> None:
        """Ends this half of the stream when nobody is left to talk to."""
        self._open.discard(rank)
        if not self._open:
            self._outbox.close()

    def close(self, timeout_secs: float) -> None:
        """Ends this half, and waits until all that was said has arrived."""
        self._open.clear()
        self._outbox.close()
        if threading.current_thread() is not self._reader:
            self._reader.join(timeout_secs)

    def _read(self) -> None:
        try:
            for message in self._call:
                self._take(Word.FromString(message))
        except grpc.RpcError:
            pass
        if self._open:
            self._on_end()
        for peer in self.peers.values():
            peer.hear(None)

    def _take(self, word: Word) -> None:
        if word.roll_call:
            with self._changed:
                self._absent = set(word.absent)
                self._changed.notify_all()
        elif peer := self.peers.get(word.peer):
            peer.hear(None if word.gone else word.text)
