"""Whether this process still reaches all others, not only the chief that hears of it.

Where a network lets two processes reach the chief but not each other, all live, and none goes on.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

from terngrad.cluster.channel import split_address

_LONGEST_CALL_SECS = 5.0


class Reachability:
    """Calls at the other processes' ports, and counts for how long one did not answer."""

    def __init__(self, doors: Mapping[int, str], timeout_secs: float) -> None:
        """Calls nobody yet.

        Args:
          doors: HOST:PORT at which each other process listens, by rank.
          timeout_secs: after so long without an answer a process is out of reach.
        """
        self._doors = doors
        self._timeout_secs = timeout_secs
        self._call_secs = min(_LONGEST_CALL_SECS, timeout_secs / 4)
        self._reached_at: dict[int, float] = {}

    def forget(self) -> None:
        """Begins anew: until now nobody had to answer."""
        self._reached_at.clear()

    def unreachable(self, now: float) -> int | None:
        """Calls at all; returns one that did not answer for too long.

        Args:
          now: seconds, on a clock that stands still while this process does.
        """
        for rank, address in self._doors.items():
            if self._answers(address):
                self._reached_at[rank] = now
            elif now - self._reached_at.setdefault(rank, now) > self._timeout_secs:
                return rank
        return None

    def _answers(self, address: str) -> bool:
        try:
            socket.create_connection(split_address(address), self._call_secs).close()
        except OSError:
            return False
        return True
