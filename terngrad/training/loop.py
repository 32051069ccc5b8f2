"""The training loop: runs steps, and between them logs, saves, and stops when asked."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import time
from collections.abc import Callable, Iterator

import tensorflow as tf

from terngrad.cluster.pulse import Pulse
from terngrad.layout import Layout
from terngrad.training.clock import Clock
from terngrad.training.divergence import DivergedError, not_finite
from terngrad.training.progress import Progress, make_progress
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
      runner_at: the runner of the step after so many steps, and the step up to which it serves.
      batches: iterator of (images, labels).
      batch_size: images in a batch.
      layout: of the gradients.
      cadence: when to log, save, write summaries.
      report: called with the progress every `cadence.log_every` steps.
      save: called with a step; returns the checkpoint's path, None where another process saves.
      writer: of summaries, or None.
      profile_dir: where a profile goes.
      unsaved: what messages say in the place of a checkpoint while there is none.
      pulse: told when steps are under way, for other processes to see.
      recover: called when a step failed; returns the step at which the training then is and its
        batches, or None if it cannot go on.
      is_stopped: whether the others had been asked to stop when this process got their state.
    """

    runner_at: Callable[[int], tuple[Runner, int]]
    batches: Iterator
    batch_size: int
    layout: Layout
    cadence: Cadence
    report: Callable[[Progress], None]
    save: Callable[[int], str | None]
    writer: SummaryWriter | None = None
    profile_dir: str = ""
    unsaved: str = "none was written yet"
    pulse: Pulse = dataclasses.field(default_factory=Pulse)
    recover: Callable[[], tuple[int, Iterator] | None] = lambda: None
    is_stopped: Callable[[], bool] = lambda: False
    _called: set[Callable] = dataclasses.field(default_factory=set, init=False)

    def run(self, step: int, checkpoint: str | None, stop: StopRequest) -> tuple[str | None, bool]:
        """Trains from `step` on.

        Args:
          step: steps done before.
          checkpoint: of that step, if there is one.
          stop: looked at between calls into TensorFlow.

        Returns:
          The path of the last checkpoint, and whether the end was a request to stop, of this
          process or another.

        Raises:
          DivergedError: names the step, what is not finite, and the last good checkpoint.
        """
        saved_step = step if checkpoint else -1
        summary_due = self.writer is not None
        self.runner_at(step)[0].compile(self.batches)
        profiler = _Profiler(self.cadence.profile, self.profile_dir)
        clock = Clock()
        saved_at = summarized_at = time.monotonic()
        ended = self.is_stopped()
        while step < self.cadence.max_steps and not ended:
            profiler.at(step)
            runner, until = self.runner_at(step)
            if stop.signal:
                runner.request_stop()  # one more step tells the other processes
            try:
                if summary_due and runner.is_observable:
                    outcome, step = self._observe(runner, step, clock), step + 1
                    summarized_at = time.monotonic()
                else:
                    wanted = min(self.cadence.next_stop(step), until) - step
                    count = clock.affordable(wanted, _LONGEST_CALL_SECS)
                    with clock.timing(count), self._pulsing(runner.many, step):
                        outcome = runner.many(self.batches, count)
                        step += int(outcome.done)
            except tf.errors.OpError:
                if (found := self.recover()) is None:
                    raise
                step, self.batches = found
                ended = self.is_stopped()
                continue
            self._check(outcome, step, checkpoint)
            ended = bool(outcome.stop)
            if step % self.cadence.log_every == 0:
                try:
                    self._report(outcome, step, clock)
                except BrokenPipeError:  # nobody reads the lines any more: end, but lose nothing
                    stop.signal = stop.signal or signal.SIGPIPE
            if self._save_due(runner, outcome, step, time.monotonic() - saved_at):
                checkpoint = self._save(step, checkpoint)
                saved_step, saved_at = step, time.monotonic()
            summary_due = self._summary_due(time.monotonic() - summarized_at)
        profiler.close()
        if saved_step != step:
            checkpoint = self._save(step, checkpoint)
        if self.writer:
            self.writer.flush()
        return checkpoint, ended

    def _observe(self, runner: Runner, step: int, clock: Clock) -> Outcome:
        with clock.timing(1), self._pulsing(runner.one, step):
            observation = runner.one(self.batches)
        self.writer.gradients(observation.gradients, observation.zeros, step + 1)
        self.writer.traffic(runner.codecs, step + 1)
        self.writer.flush()
        return observation.outcome

    def _pulsing(self, call: Callable, step: int) -> contextlib.AbstractContextManager:
        if call in self._called:
            return self.pulse.steps(step)
        self._called.add(call)  # it compiles now, or waits for the first of all batches: for long
        return contextlib.nullcontext()

    def _check(self, outcome: Outcome, step: int, checkpoint: str | None) -> None:
        if bad := not_finite(outcome.losses, outcome.scales, self.layout):
            last = checkpoint or self.unsaved
            raise DivergedError(f"step {step}: {', '.join(bad)}; last good checkpoint: {last}.")

    def _save(self, step: int, checkpoint: str | None) -> str | None:
        try:
            return self.save(step)
        except ValueError as error:  # weights that are not finite
            raise DivergedError(
                f"{error} Last good checkpoint: {checkpoint or self.unsaved}."
            ) from error

    def _report(self, outcome: Outcome, step: int, clock: Clock) -> None:
        seconds = clock.seconds_per_step()
        progress = make_progress(
            step, outcome.losses, outcome.learning_rate, seconds, self.batch_size
        )
        self.report(progress)
        if self.writer:
            self.writer.progress(progress)

    def _save_due(self, runner: Runner, outcome: Outcome, step: int, seconds: float) -> bool:
        by_step = self.cadence.save_every and step % self.cadence.save_every == 0
        if by_step or outcome.save:
            return True
        by_time = bool(self.cadence.save_secs and seconds >= self.cadence.save_secs)
        if by_time and runner.saves_together:
            runner.request_save()  # clocks differ: all save after the same step
            return False
        return by_time

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


def _next_multiple(step: int, every: int) -> int:
    return step - step % every + every
