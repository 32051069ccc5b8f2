"""Where workers meet: ps 0 passes the words of worker 0, the chief, and the others on.

So heartbeats need no ports of the workers' own, and are as safe as the rest.
"""

from __future__ import annotations

import threading

from terngrad.exchange.parameter_server.messages import Word
from terngrad.exchange.parameter_server.streams import Outbox

_CHIEF = 0
_MOST_UNREAD = 1 << 12  # words


class RelayError(ValueError):
    """Says why a word cannot be passed on."""


class Relay:
    """The workers' Meet streams."""

    def __init__(self, workers: int) -> None:
        """Nobody has come yet."""
        self._absent = set(range(workers))
        self._outboxes: dict[int, Outbox] = {}
        self._lock = threading.Lock()

    def come(self, worker: int) -> Outbox:
        """Lets a worker in, and tells all who is absent; returns what is for it."""
        with self._lock:
            self._outboxes[worker] = Outbox()
            self._absent.discard(worker)
            roll_call = Word(roll_call=True, absent=sorted(self._absent)).SerializeToString()
            for outbox in self._outboxes.values():
                outbox.put(roll_call)
            return self._outboxes[worker]

    def go(self, worker: int) -> None:
        """Tells those who talk with a worker that its stream ended."""
        with self._lock:
            if outbox := self._outboxes.pop(worker, None):
                outbox.close()
            gone = Word(peer=worker, gone=True).SerializeToString()
            for other, outbox in self._outboxes.items():
                if _CHIEF in (worker, other):
                    outbox.put(gone)

    def pass_on(self, worker: int, word: Word) -> None:
        """Hands a worker's word to whom it is for; nobody hears it who has gone.

        Raises:
          RelayError: it is not between the chief and another worker.
        """
        if (worker == _CHIEF) == (word.peer == _CHIEF):
            raise RelayError(f"a word of worker {worker} to worker {word.peer}, not the chief")
        with self._lock:
            outbox = self._outboxes.get(word.peer)
            if outbox is not None and len(outbox) < _MOST_UNREAD:
                outbox.put(Word(peer=worker, text=word.text).SerializeToString())
