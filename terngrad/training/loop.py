"""The training loop: runs steps, and between them logs, saves, and stops when asked."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import time
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from terngrad.layout import Layout
from terngrad.training.progress import Progress
from terngrad.training.runner import Outcome, Runner
from terngrad.training.summaries import SummaryWriter

_LONGEST_CALL_SECS = 1.0  # so that a signal is answered soon


@dataclasses.dataclass(frozen=True)
class Cadence:
    """When things happen, in steps since the training began or in seconds.

    Attributes:
      max_steps: end of the training.
      log_every: steps between reports.
      save_every: steps between checkpoints; 0 = none but the last.
      save_secs: seconds between checkpoints; 0 = by steps only.
      summary_secs: seconds between histograms of gradients; 0 = never.
      profile: first and last step of a profile, or None.
    """

    max_steps: int
    log_every: int = 10
    save_every: int = 0
    save_secs: float = 0.0
    summary_secs: float = 180.0
    profile: tuple[int, int] | None = None

    def next_stop(self, step: int) -> int:
        """The first step after `step` at which something happens."""
        stops = [self.max_steps, _next_multiple(step, self.log_every)]
        if self.save_every:
            stops.append(_next_multiple(step, self.save_every))
        if self.profile:
            stops += [edge for edge in self.profile if edge > step]
        return min(stops)


class StopRequest(contextlib.AbstractContextManager):
    """Turns SIGTERM and Ctrl-C into a request to end after the steps under way."""

    def __init__(self) -> None:
        """Nothing is requested yet."""
        self.signal: signal.Signals | None = None
        self._before: dict = {}

    def __enter__(self) -> StopRequest:
        """Listens for signals."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *exception) -> None:
        """Gives the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _request(self, number: int, frame) -> None:
        del frame
        self.signal = signal.Signals(number)


class DivergedError(ValueError):
    """A loss or a gradient is NaN or infinite."""


@dataclasses.dataclass
class Loop:
    """Trains until `cadence.max_steps` or a request to stop.

    Attributes:
      runner_at: the runner of the step after so many steps, and the step up to which it serves.
      batches: iterator of (images, labels).
      batch_size: images in a batch.
      layout: of the gradients.
      cadence: when to log, save, write summaries.
      report: called with the progress every `cadence.log_every` steps.
      save: called with a step; returns the checkpoint's path.
      writer: of summaries, or None.
      profile_dir: where a profile goes.
    """

    runner_at: Callable[[int], tuple[Runner, int]]
    batches: Iterator
    batch_size: int
    layout: Layout
    cadence: Cadence
    report: Callable[[Progress], None]
    save: Callable[[int], str]
    writer: SummaryWriter | None = None
    profile_dir: str = ""

    def run(self, step: int, checkpoint: str | None, stop: StopRequest) -> str | None:
        """Trains from `step` on.

        Args:
          step: steps done before.
          checkpoint: of that step, if there is one.
          stop: looked at between calls into TensorFlow.

        Returns:
          The path of the last checkpoint.

        Raises:
          DivergedError: names the step, what is not finite, and the last good checkpoint.
        """
        saved_step = step if checkpoint else -1
        summary_due = self.writer is not None and self.cadence.summary_secs > 0
        self.runner_at(step)[0].compile(self.batches, observed=summary_due)
        profiler = _Profiler(self.cadence.profile, self.profile_dir)
        clock = _Clock(step)
        saved_at = summarized_at = clock.now
        while step < self.cadence.max_steps and not stop.signal:
            profiler.at(step)
            runner, until = self.runner_at(step)
            if summary_due:
                outcome, step = self._observe(runner, step), step + 1
                summarized_at = time.monotonic()
            else:
                count = min(self.cadence.next_stop(step), until) - step
                outcome = runner.many(self.batches, clock.affordable(count))
                step += int(outcome.done)
            self._check(outcome, step, checkpoint)
            clock.tick(step)
            if step % self.cadence.log_every == 0:
                self._report(outcome, step, clock)
            if self._save_due(step, clock.now - saved_at):
                checkpoint, saved_step, saved_at = self.save(step), step, time.monotonic()
            summary_due = self._summary_due(clock.now - summarized_at)
        profiler.close()
        if saved_step != step:
            checkpoint = self.save(step)
        if self.writer:
            self.writer.flush()
        return checkpoint

    def _observe(self, runner: Runner, step: int) -> Outcome:
        observation = runner.one(self.batches)
        self.writer.gradients(observation.gradients, observation.zeros, step + 1)
        self.writer.traffic(runner.codecs, step + 1)
        self.writer.flush()
        return observation.outcome

    def _check(self, outcome: Outcome, step: int, checkpoint: str | None) -> None:
        losses = dict(zip(("entropy_loss", "reg_loss"), outcome.losses, strict=True))
        bad = [f"{name} is {float(v)}" for name, v in losses.items() if not np.isfinite(v)]
        infinite = ~np.isfinite(outcome.scales.numpy())
        bad += [
            f"the gradient of {self.layout.names[self.layout.coded[i]]} is not finite"
            for i in np.flatnonzero(infinite)
        ]
        if bad:
            last = checkpoint or "none was written yet"
            raise DivergedError(f"step {step}: {', '.join(bad)}; last good checkpoint: {last}.")

    def _report(self, outcome: Outcome, step: int, clock: _Clock) -> None:
        seconds = clock.seconds_per_step(step)
        progress = Progress(
            step,
            float(outcome.losses.entropy),
            float(outcome.losses.regularization),
            float(outcome.learning_rate),
            seconds,
            self.batch_size / seconds,
        )
        self.report(progress)
        if self.writer:
            self.writer.progress(progress)

    def _save_due(self, step: int, seconds: float) -> bool:
        by_step = self.cadence.save_every and step % self.cadence.save_every == 0
        return bool(by_step or (self.cadence.save_secs and seconds >= self.cadence.save_secs))

    def _summary_due(self, seconds: float) -> bool:
        secs = self.cadence.summary_secs
        return self.writer is not None and 0 < secs <= seconds


class _Profiler:
    """Profiles the steps between two, or to the end of the run if that comes first."""

    def __init__(self, steps: tuple[int, int] | None, directory: str) -> None:
        self._first, self._last = steps or (-1, -1)
        self._directory = directory
        self._running = False

    def at(self, step: int) -> None:
        if step == self._first:
            tf.profiler.experimental.start(self._directory)
            self._running = True
        elif step == self._last:
            self.close()

    def close(self) -> None:
        if self._running:
            tf.profiler.experimental.stop()
            self._running = False


class _Clock:
    """Durations of steps, for reports and for the length of a call."""

    def __init__(self, step: int) -> None:
        self.now = time.monotonic()
        self._reported = (step, self.now)
        self._last = (step, self.now)
        self._pace = 0.0  # seconds a step, in the last call

    def tick(self, step: int) -> None:
        self.now = time.monotonic()
        before, since = self._last
        self._pace = (self.now - since) / max(step - before, 1)
        self._last = (step, self.now)

    def affordable(self, count: int) -> int:
        if self._pace == 0.0:
            return min(count, 1)
        return max(1, min(count, int(_LONGEST_CALL_SECS / self._pace)))

    def seconds_per_step(self, step: int) -> float:
        before, since = self._reported
        self._reported = (step, self.now)
        return (self.now - since) / (step - before)


def _next_multiple(step: int, every: int) -> int:
    return step - step % every + every
