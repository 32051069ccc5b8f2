"""What a worker knows of which workers make a step, where a step needs fewer than all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

_REMEMBERED_STEPS = 1 << 10  # of those that are not yet made here

_T = TypeVar("_T")


class Decisions(Generic[_T]):
    """What ps 0 decided of steps, and what waits for that. Under its user's lock.

    Attributes:
      spares: whether a step needs fewer than all members of the view.
    """

    def __init__(self, rank: int, tell_ready: Callable[[int], None]) -> None:
        """Of a worker; `tell_ready` lets ps 0 know that it has gradients of a step."""
        self.spares = False
        self._rank, self._tell_ready = rank, tell_ready
        self._going: dict[int, tuple[int, ...]] = {}
        self._held: dict[int, list[_T]] = {}
        self._followed = -1  # last step for which this worker computes nothing
        self._late = -1  # last step for which its gradients were late

    def begin(self, *, spares: bool) -> None:
        """There is a new view: nothing of the one before holds."""
        self.spares = spares
        self._going.clear()
        self._held.clear()

    def give_up(self) -> None:
        """The step under way is: nothing waits any more."""
        self._held.clear()

    def contributors(self, step: int) -> tuple[int, ...] | None:
        """The workers that make a step; None if they are not decided."""
        return self._going.get(step)

    def follows(self, step: int) -> bool:
        """Whether a step is made without this worker, which then computes nothing for it.

        It is noted: gradients that were never computed do not count as late.
        """
        is_over = self._rank not in self._going.get(step, (self._rank,))
        self._followed = step if is_over else self._followed
        return is_over

    def is_forgotten(self, step: int) -> bool:
        """Whether a step was decided so long ago that its contributors are forgotten."""
        return self.spares and step < min(self._going, default=step)

    def hold(self, step: int, what: _T) -> None:
        """Keeps what cannot be sent before the contributors to the step are decided."""
        if step not in self._held:
            self._held[step] = []
            self._tell_ready(step)
        self._held[step].append(what)

    def tell_late(self, step: int) -> None:
        """Lets ps 0 count gradients that were computed, and come too late."""
        going = self._going.get(step)
        is_late = going is not None and self._rank not in going and self._followed != step
        if is_late and self._late != step:
            self._late = step
            self._tell_ready(step)

    def decide(self, step: int, contributors: tuple[int, ...]) -> list[_T]:
        """Notes the contributors to a step; returns what waited for that."""
        self._going[step] = contributors
        if len(self._going) > _REMEMBERED_STEPS:
            del self._going[min(self._going)]
        return self._held.pop(step, [])

    def made(self, step: int) -> None:
        """A step is made here: it is of no interest any more, nor are those before."""
        for past in [s for s in self._going if s <= step]:
            del self._going[past]
