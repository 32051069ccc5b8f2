"""The training loop: runs steps, logs and saves between them, and stops on request."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable

import tensorflow as tf

from terngrad.training.errors import DivergedError, NotFiniteError
from terngrad.training.signals import StopRequest
from terngrad.training.stepper import Stepper
from terngrad.training.summaries import Profiler, SummaryWriter
from terngrad.training.timing import Cadence, Clock, Progress

_LONGEST_CALL_SECS = 1.0  # so that a signal is answered soon


@dataclasses.dataclass
class Loop:
    """Trains up to `cadence.max_steps`, rounded up to a whole stride, or to a request to stop.

    Attributes:
      stepper: makes the steps.
      cadence: when to log, save, and write summaries.
      report: called with the progress every `cadence.log_every` of the worker's own steps.
      save: called with a step; returns the checkpoint's path, or None if another process saves.
      saves_last: whether the loop, not the caller, saves the last step.
      saves_soon: save after the first steps, as an earlier process was killed while it saved.
      writer: writer of summaries, or None.
      profile_dir: folder for a profile.
      first_step_made: called after the first step, and again after later ones.
      unsaved: text for messages while there is no checkpoint.
    """

    stepper: Stepper
    cadence: Cadence
    report: Callable[[Progress], None]
    save: Callable[[int], str | None]
    saves_last: bool = True
    saves_soon: bool = False
    writer: SummaryWriter | None = None
    profile_dir: str = ""
    first_step_made: Callable[[], None] = lambda: None
    unsaved: str = "none was written yet"

    def run(self, checkpoint: str | None, stop: StopRequest) -> tuple[str | None, bool]:
        """Trains from the stepper's step on.

        Args:
          checkpoint: path of that step's checkpoint, if there is one.
          stop: checked between calls into TensorFlow.

        Returns:
          The path of the last checkpoint, and whether this or another process asked to stop.

        Raises:
          DivergedError: the training diverged.
        """
        stepper, cadence = self.stepper, self.cadence
        saved_step = stepper.step if checkpoint else -1
        summary_due = self.writer is not None
        stepper.compile()
        profiler = Profiler(cadence.profile, self.profile_dir)
        clock = Clock()
        summarized_at = time.monotonic()
        saved_at = -math.inf if self.saves_soon else summarized_at
        while stepper.step < cadence.max_steps and not stepper.is_over:
            before, own_before = stepper.step, stepper.own_step
            profiler.at(before)
            limit = stepper.select()
            if stop.signal and not stepper.request_stop():
                break
            observes = summary_due and stepper.is_observable and not stop.signal
            try:
                if observes:
                    self._observe(clock)
                else:
                    self._make(limit, clock)
            except NotFiniteError as error:
                last = checkpoint or self.unsaved
                raise DivergedError(f"{error}; last good checkpoint: {last}.") from None
            except tf.errors.OpError:
                if not stepper.recover():
                    raise
                continue
            stop.first_step_is_made()
            self.first_step_made()
            if observes:
                summarized_at = time.monotonic()
            if cadence.reports(own_before, stepper.own_step):
                self._report(clock)
            if self._save_due(before, time.monotonic() - saved_at):
                checkpoint = self._save(checkpoint)
                saved_step, saved_at = stepper.step, time.monotonic()
            summary_due = self._summary_due(time.monotonic() - summarized_at)
        profiler.close()
        if self.saves_last and saved_step != stepper.step:
            checkpoint = self._save(checkpoint)
        if self.writer:
            stepper.summarize(self.writer)
            self.writer.flush()
        return checkpoint, stepper.is_over

    def _make(self, limit: int, clock: Clock) -> None:
        step = self.stepper.step
        wanted = min(self.cadence.next_stop(step) - step, limit)
        before_last = self._whole(self.cadence.max_steps - step) - self.stepper.stride
        if self.writer and before_last > 0:  # shows the last step's gradients
            wanted = min(wanted, before_last)
        count = self._whole(clock.affordable(wanted, _LONGEST_CALL_SECS))
        with clock.timing(count):
            self.stepper.make(count)

    def _whole(self, count: int) -> int:
        """Rounds a number of steps up to a multiple of the stepper's stride."""
        return -(-count // self.stepper.stride) * self.stepper.stride

    def _observe(self, clock: Clock) -> None:
        codecs = self.stepper.codecs
        with clock.timing(self.stepper.stride):
            shown = self.stepper.observe()
        self.writer.gradients(shown.gradients, shown.zeros, self.stepper.step)
        self.writer.traffic(codecs, self.stepper.step)
        self.writer.flush()

    def _save(self, checkpoint: str | None) -> str | None:
        try:
            return self.save(self.stepper.step)
        except NotFiniteError as error:
            raise DivergedError(
                f"{error} Last good checkpoint: {checkpoint or self.unsaved}."
            ) from error

    def _report(self, clock: Clock) -> None:
        progress = self.stepper.progress(clock.seconds_per_step())
        self.report(progress)
        if self.writer:
            self.writer.progress(progress)
            self.stepper.summarize(self.writer)

    def _save_due(self, before: int, seconds: float) -> bool:
        if self.stepper.wants_save or self.cadence.saves(before, self.stepper.step):
            return True
        longest = self.cadence.save_secs or math.inf
        return seconds >= longest and self.stepper.request_save()

    def _summary_due(self, seconds: float) -> bool:
        left = self.cadence.max_steps - self.stepper.step
        is_last = 0 < left <= self.stepper.stride
        return self.writer is not None and (is_last or self.cadence.summary_secs <= seconds)
