"""When a training loop reports, saves, writes summaries and profiles."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Cadence:
    """When a loop acts, in steps since the training began or in seconds.

    Attributes:
      max_steps: last step of the training.
      log_every: steps between reports.
      save_every: steps between checkpoints; 0 = only the last.
      save_secs: seconds between checkpoints; 0 = by steps only.
      summary_secs: seconds between histograms of gradients, which also show the first and the last
        step.
      profile: first and last step of a profile, or None.
    """

    max_steps: int
    log_every: int = 10
    save_every: int = 0
    save_secs: float = 0.0
    summary_secs: float = 180.0
    profile: tuple[int, int] | None = None

    def next_stop(self, step: int) -> int:
        """Returns the first step after `step` at which the loop acts."""
        stops = [self.max_steps, _next_multiple(step, self.log_every)]
        if self.save_every:
            stops.append(_next_multiple(step, self.save_every))
        if self.profile:
            stops += [edge for edge in self.profile if edge > step]
        return min(stops)

    def reports(self, before: int, step: int) -> bool:
        """Returns whether a report is due after the step `before`, up to `step`."""
        return _passes(self.log_every, before, step)

    def saves(self, before: int, step: int) -> bool:
        """Returns whether a checkpoint is due after the step `before`, up to `step`."""
        return bool(self.save_every) and _passes(self.save_every, before, step)


def _passes(every: int, before: int, step: int) -> bool:
    """Returns whether a multiple of `every` is among the steps after `before` up to `step`."""
    return step // every > before // every


def _next_multiple(step: int, every: int) -> int:
    return step - step % every + every
