"""Checks that this process can reach all others, not only the chief.

If two processes reach the chief but not each other, all are alive but the training stands still.
"""

from __future__ import annotations

from collections.abc import Mapping

from terngrad.cluster.addresses import Interface, dial
from terngrad.cluster.channel import split_address

_LONGEST_CALL_SECS = 5.0


class Reachability:
    """Connects to the other processes' ports and measures how long each has not answered."""

    def __init__(
        self,
        addresses: Mapping[int, str],
        timeout_secs: float,
        interface: Interface | None = None,
    ) -> None:
        """Does not connect yet.

        Args:
          addresses: HOST:PORT at which each other process listens, by rank.
          timeout_secs: a process is unreachable after this long without an answer.
          interface: from which to connect; None = any.
        """
        self._addresses, self._interface = addresses, interface
        self._timeout_secs = timeout_secs
        self._call_secs = min(_LONGEST_CALL_SECS, timeout_secs / 4)
        self._reached_at: dict[int, float] = {}

    def forget(self) -> None:
        """Starts again: drops the times of all earlier answers."""
        self._reached_at.clear()

    def unreachable(self, now: float) -> int | None:
        """Connects to all; returns a process that has not answered for too long, None if all have.

        Args:
          now: seconds, on a clock that stops while this process is stopped.
        """
        for rank, address in self._addresses.items():
            if self._answers(address):
                self._reached_at[rank] = now
            elif now - self._reached_at.setdefault(rank, now) > self._timeout_secs:
                return rank
        return None

    def _answers(self, address: str) -> bool:
        try:
            dial(split_address(address), self._call_secs, self._interface).close()
        except OSError:
            return False
        return True
