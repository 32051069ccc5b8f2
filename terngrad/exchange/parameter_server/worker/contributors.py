"""Which workers make a step, as far as a worker knows, if a step needs fewer than all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

_REMEMBERED_STEPS = 1 << 10  # decided steps that this worker has not made

_T = TypeVar("_T")


class StepContributors(Generic[_T]):
    """The contributors to steps, and the pushes that wait for them; the caller holds a lock.

    The coordinator decides them.

    Attributes:
      has_backup_workers: whether a step needs fewer workers than the view has.
    """

    def __init__(self, rank: int, report_ready: Callable[[int], None]) -> None:
        """Starts without decisions.

        Args:
          rank: index of this worker.
          report_ready: reports to the coordinator that this worker has the gradients of a step.
        """
        self.has_backup_workers = False
        self._rank, self._report_ready = rank, report_ready
        self._decided: dict[int, tuple[int, ...]] = {}
        self._waiting: dict[int, list[_T]] = {}
        self._excluded_at = -1  # last step for which this worker computes nothing
        self._late = -1  # last step for which its gradients were late

    def begin(self, *, has_backup_workers: bool) -> None:
        """Starts a new view and forgets the last one."""
        self.has_backup_workers = has_backup_workers
        self._decided.clear()
        self._waiting.clear()

    def give_up(self) -> None:
        """Drops the waiting pushes, because the current step is abandoned."""
        self._waiting.clear()

    def contributors(self, step: int) -> tuple[int, ...] | None:
        """Returns the workers that make a step; None until that is decided."""
        return self._decided.get(step)

    def is_excluded(self, step: int) -> bool:
        """Whether a step is made without this worker, which then computes nothing for it.

        It notes such a step, because gradients that were never computed do not count as late.
        """
        is_over = self._rank not in self._decided.get(step, (self._rank,))
        self._excluded_at = step if is_over else self._excluded_at
        return is_over

    def is_forgotten(self, step: int) -> bool:
        """Whether a step is so old that its contributors are forgotten."""
        return self.has_backup_workers and step < min(self._decided, default=step)

    def wait(self, step: int, what: _T) -> None:
        """Keeps a push until the contributors to its step are decided."""
        if step not in self._waiting:
            self._waiting[step] = []
            self._report_ready(step)
        self._waiting[step].append(what)

    def report_late(self, step: int) -> None:
        """Reports gradients to the coordinator that came too late, so that it counts them."""
        decided = self._decided.get(step)
        is_late = decided is not None and self._rank not in decided and self._excluded_at != step
        if is_late and self._late != step:
            self._late = step
            self._report_ready(step)

    def decide(self, step: int, contributors: tuple[int, ...]) -> list[_T]:
        """Notes the contributors to a step; returns the pushes that waited for them."""
        self._decided[step] = contributors
        if len(self._decided) > _REMEMBERED_STEPS:
            del self._decided[min(self._decided)]
        return self._waiting.pop(step, [])

    def made(self, step: int) -> None:
        """Forgets a step that this worker has made, and all earlier ones."""
        for past in [s for s in self._decided if s <= step]:
            del self._decided[past]
