"""The training loop: runs steps, and between them logs, saves, and stops when asked."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import time
from collections.abc import Callable

import tensorflow as tf

from terngrad.training.clock import Clock
from terngrad.training.divergence import DivergedError, NotFiniteError
from terngrad.training.progress import Progress
from terngrad.training.stepper import Stepper
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
      summary_secs: seconds between histograms of gradients.
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
    """Turns SIGTERM, SIGHUP and Ctrl-C into a request to end after the steps under way."""

    def __init__(self) -> None:
        """Nothing is requested yet."""
        self.signal: signal.Signals | None = None
        self._before: dict = {}

    def __enter__(self) -> StopRequest:
        """Listens for signals."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
                self._before[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *exception) -> None:
        """Gives the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _request(self, number: int, frame) -> None:
        del frame
        if self.signal:  # asked twice: give the signals back, so that a third one ends at once
            self.__exit__()
        self.signal = signal.Signals(number)


@dataclasses.dataclass
class Loop:
    """Trains until `cadence.max_steps` or a request to stop.

    Attributes:
      stepper: makes the steps.
      cadence: when to log, save, write summaries.
      report: called with the progress every `cadence.log_every` steps of the worker's own.
      save: called with a step; returns the checkpoint's path, None where another process saves.
      saves_last: whether the last step is saved here, not by the caller.
      writer: of summaries, or None.
      profile_dir: where a profile goes.
      unsaved: what messages say in the place of a checkpoint while there is none.
    """

    stepper: Stepper
    cadence: Cadence
    report: Callable[[Progress], None]
    save: Callable[[int], str | None]
    saves_last: bool = True
    writer: SummaryWriter | None = None
    profile_dir: str = ""
    unsaved: str = "none was written yet"

    def run(self, checkpoint: str | None, stop: StopRequest) -> tuple[str | None, bool]:
        """Trains from the stepper's step on.

        Args:
          checkpoint: of that step, if there is one.
          stop: looked at between calls into TensorFlow.

        Returns:
          The path of the last checkpoint, and whether the end was a request to stop, of this
          process or another.

        Raises:
          DivergedError: names the step, what is not finite, and the last good checkpoint.
        """
        stepper, cadence = self.stepper, self.cadence
        saved_step = stepper.step if checkpoint else -1
        summary_due = self.writer is not None
        stepper.compile()
        profiler = _Profiler(cadence.profile, self.profile_dir)
        clock = Clock()
        saved_at = summarized_at = time.monotonic()
        while stepper.step < cadence.max_steps and not stepper.is_over:
            before, own_before = stepper.step, stepper.own_step
            profiler.at(before)
            most = stepper.select()
            if stop.signal and not stepper.request_stop():
                break
            observes = summary_due and stepper.is_observable
            try:
                if observes:
                    self._observe(clock)
                else:
                    self._make(most, clock)
            except NotFiniteError as error:
                last = checkpoint or self.unsaved
                raise DivergedError(f"{error}; last good checkpoint: {last}.") from None
            except tf.errors.OpError:
                if not stepper.recover():
                    raise
                continue
            if observes:
                summarized_at = time.monotonic()
            if _passes(cadence.log_every, own_before, stepper.own_step):
                try:
                    self._report(clock)
                except BrokenPipeError:  # nobody reads the lines any more: end, but lose nothing
                    stop.signal = stop.signal or signal.SIGPIPE
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

    def _make(self, most: int, clock: Clock) -> None:
        step = self.stepper.step
        wanted = min(self.cadence.next_stop(step) - step, most)
        count = clock.affordable(wanted, _LONGEST_CALL_SECS)
        with clock.timing(count):
            self.stepper.make(count)

    def _observe(self, clock: Clock) -> None:
        codecs = self.stepper.codecs
        with clock.timing(1):
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
        every, secs = self.cadence.save_every, self.cadence.save_secs
        if self.stepper.wants_save or (every and _passes(every, before, self.stepper.step)):
            return True
        return bool(secs and seconds >= secs) and self.stepper.request_save()

    def _summary_due(self, seconds: float) -> bool:
        secs = self.cadence.summary_secs
        return self.writer is not None and secs <= seconds


class _Profiler:
    """Profiles the steps between two, or to the end of the run if that comes first."""

    def __init__(self, steps: tuple[int, int] | None, directory: str) -> None:
        self._first, self._last = steps or (-1, -1)
        self._directory = directory
        self._running = False

    def at(self, step: int) -> None:
        if not self._running and self._first <= step < self._last:
            tf.profiler.experimental.start(self._directory)
            self._running = True
        elif step >= self._last:
            self.close()

    def close(self) -> None:
        if self._running:
            tf.profiler.experimental.stop()
            self._running = False
            print(f"Profile for TensorBoard: {self._directory}", flush=True)


def _passes(every: int, before: int, step: int) -> bool:
    """Whether there is a multiple of `every` among the steps after `before` up to `step`."""
    return step // every > before // every


def _next_multiple(step: int, every: int) -> int:
    return step - step % every + every
