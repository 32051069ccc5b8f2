"""When a training loop reports, saves and writes summaries, and what it reports."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tensorflow as tf

    from terngrad.training.classifier import Losses

_SHORTEST_SECS = 1e-9  # of a step, so that steps per second are finite


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


class Clock:
    """Times steps only, without compilation, saving and summaries."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        """Starts without measurements; `now` returns the seconds since any fixed moment."""
        self._now = now
        self._steps = 0  # since the last report
        self._seconds = 0.0
        self._pace = math.inf  # seconds per step in the last call

    @contextlib.contextmanager
    def timing(self, steps: int) -> Iterator[None]:
        """Times a call that makes `steps` steps, unless it raises.

        The mean includes the first call only if there is no other: the first call also compiles or
        fills the input pipeline.
        """
        start = self._now()
        yield
        seconds = self._now() - start
        if self._pace < math.inf:
            self._steps += steps
            self._seconds += seconds
        self._pace = max(seconds / steps, _SHORTEST_SECS)

    def affordable(self, count: int, seconds: float) -> int:
        """Returns how many of `count` steps fit into `seconds`: at least 1; 1 before timing."""
        return max(1, min(count, int(seconds / self._pace)))

    def seconds_per_step(self) -> float:
        """Returns the mean since this was last called, or else that of the last timed call.

        It is infinite if nothing was timed.
        """
        mean = self._seconds / self._steps if self._steps else self._pace
        self._steps, self._seconds = 0, 0.0
        return max(mean, _SHORTEST_SECS)


def _passes(every: int, before: int, step: int) -> bool:
    """Returns whether a multiple of `every` is among the steps after `before` up to `step`."""
    return step // every > before // every


def _next_multiple(step: int, every: int) -> int:
    return step - step % every + every


@dataclasses.dataclass(frozen=True)
class Progress:
    """State of a run after `step` steps.

    Attributes:
      step: steps done since the training began, earlier runs included.
      entropy_loss: cross entropy of the step's batch.
      reg_loss: weight decay.
      learning_rate: learning rate of the step.
      sec_per_batch: mean duration of the steps since the last report, in seconds.
      examples_per_sec: images per second since the last report.
    """

    step: int
    entropy_loss: float
    reg_loss: float
    learning_rate: float
    sec_per_batch: float
    examples_per_sec: float

    @property
    def total_loss(self) -> float:
        """The loss whose gradient the step computed."""
        return self.entropy_loss + self.reg_loss


def make_progress(
    step: int, losses: Losses, learning_rate: tf.Tensor, seconds: float, batch_size: int
) -> Progress:
    """Returns the state after a step.

    Args:
      step: steps done.
      losses: losses of the step.
      learning_rate: learning rate of the step.
      seconds: mean duration of a step since the last report.
      batch_size: images in a step.
    """
    entropy, regularization = map(float, losses)
    rate = float(learning_rate)
    return Progress(step, entropy, regularization, rate, seconds, batch_size / seconds)
