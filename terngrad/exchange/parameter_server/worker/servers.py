"""Which ps a worker reaches, and which ones it does without."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection


class Servers:
    """The ps of a training as a worker sees them; any thread may call.

    A worker waits for a ps that it does not reach, until the ps counts as lost: then the others
    take over its pieces, from the next view on. Only an elastic training loses a ps, and ps 0 only
    where another one may coordinate.

    If the ps only coordinate, steps do not need them. Their streams still show that another worker
    is lost, so a worker waits for those that it has reached; but no view is made because of a ps
    alone.

    Attributes:
      count: number of ps.
    """

    def __init__(
        self,
        count: int,
        *,
        elastic: bool,
        coordinator_moves: bool = False,
        add: bool = True,
        report_lost: Callable[[frozenset[int]], None],
    ) -> None:
        """Reaches no ps yet.

        Args:
          count: number of ps.
          elastic: whether the training goes on without a lost ps.
          coordinator_moves: whether it does without ps 0, too.
          add: whether the ps add; otherwise the workers do without them.
          report_lost: called with all lost ps when they change, if they add; must not wait.
        """
        self.count = count
        self._all = frozenset(range(count))
        self._elastic, self._moves, self._report_lost = elastic, coordinator_moves, report_lost
        self._add = add
        self._up: set[int] = set()
        self._reached: set[int] = set()  # at any time
        self._lost: set[int] = set()
        self._unused: frozenset[int] = frozenset()  # in the view, or lost for other workers
        self._changed = threading.Condition()

    @property
    def used(self) -> tuple[int, ...]:
        """Ps that add in the current view, in ascending order."""
        with self._changed:
            return tuple(sorted(self._used()))

    @property
    def reaches_used(self) -> bool:
        """Whether a stream to each of those is open."""
        with self._changed:
            return self._used() <= self._up

    def is_lost(self, ps: int) -> bool:
        """Whether this worker does without a ps."""
        with self._changed:
            return ps in self._lost

    def wait_until_ready(self, secs: float) -> bool:
        """Waits at most `secs` seconds until a stream to each ps is open; returns whether it is.

        Ps for which no view waits do not count.
        """
        with self._changed:
            return self._changed.wait_for(self._is_ready, secs)

    def opened(self, ps: int) -> None:
        """Notes that a stream to a ps is open."""
        with self._changed:
            self._up.add(ps)
            self._reached.add(ps)
            self._set_lost(self._lost - {ps})

    def broke(self, ps: int) -> bool:
        """Notes that the stream to a ps broke; returns whether the step under way may need it."""
        with self._changed:
            self._up.discard(ps)
            if ps in self._unused:
                self._set_lost(self._lost | {ps})
            return ps not in self._unused

    def lose(self, ps: int) -> bool:
        """Notes that a ps did not come back; returns whether the training goes on without it."""
        with self._changed:
            if not self._elastic or (ps == 0 and not self._moves):
                return False
            self._set_lost(self._lost | {ps} - self._up)
            return True

    def use_all_but(self, unused: Collection[int]) -> None:
        """Notes which ps are not used: this worker does not wait for them."""
        with self._changed:
            self._unused = frozenset(unused)
            self._set_lost(self._lost | self._unused - self._up)

    def report_all_lost(self) -> None:
        """Reports again which ps are lost."""
        with self._changed:
            if self._lost and self._add:
                self._report_lost(frozenset(self._lost))

    def _used(self) -> frozenset[int]:
        return self._all - self._unused if self._add else frozenset()

    def _is_ready(self) -> bool:
        return (self._all if self._add else self._reached) <= self._up | self._lost

    def _set_lost(self, lost: set[int]) -> None:
        if lost != self._lost:
            self._lost = lost
            if self._add:
                self._report_lost(frozenset(lost))
        self._changed.notify_all()
