"""What a worker knows about who makes a step, if a step needs fewer than all workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

_REMEMBERED_STEPS = 1 << 10  # decided steps that this worker has not made

_T = TypeVar("_T")


class Decisions(Generic[_T]):
    """The contributors to steps, as ps 0 decides them, and the pushes that wait for a decision.

    The caller holds a lock.

    Attributes:
      spares: whether a step needs fewer workers than the view has.
    """

    def __init__(self, rank: int, tell_ready: Callable[[int], None]) -> None:
        """Starts without decisions.

        Args:
          rank: index of this worker.
          tell_ready: tells ps 0 that this worker has the gradients of a step.
        """
        self.spares = False
        self._rank, self._tell_ready = rank, tell_ready
        self._going: dict[int, tuple[int, ...]] = {}
        self._held: dict[int, list[_T]] = {}
        self._followed = -1  # last step for which this worker computes nothing
        self._late = -1  # last step for which its gradients were late

    def begin(self, *, spares: bool) -> None:
        """Starts a new view and forgets the last one."""
        self.spares = spares
        self._going.clear()
        self._held.clear()

    def give_up(self) -> None:
        """Drops the waiting pushes, because the current step is abandoned."""
        self._held.clear()

    def contributors(self, step: int) -> tuple[int, ...] | None:
        """Returns the workers that make a step; None until ps 0 decides."""
        return self._going.get(step)

    def follows(self, step: int) -> bool:
        """Whether a step is made without this worker, which then computes nothing for it.

        It notes such a step, because gradients that were never computed do not count as late.
        """
        is_over = self._rank not in self._going.get(step, (self._rank,))
        self._followed = step if is_over else self._followed
        return is_over

    def is_forgotten(self, step: int) -> bool:
        """Whether a step is so old that its contributors are forgotten."""
        return self.spares and step < min(self._going, default=step)

    def hold(self, step: int, what: _T) -> None:
        """Keeps a push until the contributors to its step are decided."""
        if step not in self._held:
            self._held[step] = []
            self._tell_ready(step)
        self._held[step].append(what)

    def tell_late(self, step: int) -> None:
        """Tells ps 0 about gradients that were computed too late, so that it counts them."""
        going = self._going.get(step)
        is_late = going is not None and self._rank not in going and self._followed != step
        if is_late and self._late != step:
            self._late = step
            self._tell_ready(step)

    def decide(self, step: int, contributors: tuple[int, ...]) -> list[_T]:
        """Notes the contributors to a step; returns the pushes that waited for them."""
        self._going[step] = contributors
        if len(self._going) > _REMEMBERED_STEPS:
            del self._going[min(self._going)]
        return self._held.pop(step, [])

    def made(self, step: int) -> None:
        """Forgets a step that this worker has made, and all earlier ones."""
        for past in [s for s in self._going if s <= step]:
            del self._going[past]
