"""Selects the workers that make a step, if it needs fewer than all (backup workers)."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator


class Selection:
    """Selects for each step the members that are ready first.

    Attributes:
      dropped: number of late gradients by worker.
    """

    def __init__(self, members: Iterable[int], needed: int, steps: int) -> None:
        """Starts after `steps` steps; `needed` of the members make a step."""
        self._needed = needed
        self._next = steps
        self._ready: dict[int, list[int]] = collections.defaultdict(list)
        self._insisting: set[int] = set()
        self._heard: set[int] = set()  # members that have reported to be ready, or insisted
        self._members = frozenset(members)
        self._counted: dict[int, int] = {}  # last step counted in `dropped`, by worker
        self.dropped: collections.Counter[int] = collections.Counter()

    def insist(self, worker: int) -> None:
        """Makes the next steps wait for this worker until it takes part in one."""
        if worker in self._members:
            self._heard.add(worker)
            self._insisting.add(worker)

    def has_heard(self, worker: int) -> bool:
        """Returns whether a step may wait for this worker: it was ready once, or insisted."""
        return worker in self._heard

    def ready(self, worker: int, step: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Notes that a member has the gradients of a step; yields the resulting decisions.

        Yields:
          A step and the workers that make it.
        """
        if worker not in self._members or step > self._next + 1:
            return
        self._heard.add(worker)
        if step < self._next:
            if step > self._counted.get(worker, -1):  # else the worker reported it twice
                self._counted[worker] = step
                self.dropped[worker] += 1
            return
        if worker not in self._ready[step]:
            self._ready[step].append(worker)
        while (chosen := self._choose(self._ready[self._next])) is not None:
            yield self._next, chosen
            del self._ready[self._next]
            self._insisting -= set(chosen)
            self._next += 1

    def _choose(self, ready: list[int]) -> tuple[int, ...] | None:
        """Chooses from the ready workers, the earliest first; None if it is too early."""
        if len(ready) < self._needed or not self._insisting.issubset(ready):
            return None
        first = sorted(ready, key=lambda worker: worker not in self._insisting)  # stable
        return tuple(sorted(first[: max(self._needed, len(self._insisting))]))
