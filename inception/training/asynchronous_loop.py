"""The loop of an asynchronous worker: pull, compute, push; logs, and the chief's checkpoints."""

import dataclasses
import time
from collections.abc import Callable, Iterator

import tensorflow as tf

from inception.flags.configs import TrainConfig
from terngrad.asynchronous.client import Client, Pulled
from terngrad.asynchronous.gradient import Computed, GradientStep, broken_floats, contents
from terngrad.asynchronous.space import Share
from terngrad.layout import Layout
from terngrad.training import checkpoints
from terngrad.training.clock import Clock
from terngrad.training.divergence import DivergedError, not_finite
from terngrad.training.loop import StopRequest
from terngrad.training.progress import Progress, make_progress
from terngrad.training.schedules import Schedule
from terngrad.training.summaries import SummaryWriter


@dataclasses.dataclass
class AsynchronousLoop:
    """Makes steps until the run is finished, or it or this worker is to stop.

    Attributes:
      config: says how often things happen; the steps of `save_iter` are the run's, those of
        `log_every_n_steps` the worker's.
      client: the ps.
      compute: gradients, as `layout` says, of which each ps gets its of `shares`.
      schedule: the learning rate that the ps use, for the log.
      report: called with the progress.
      save: fetches the state and writes a checkpoint; None where another worker does.
      observe: writes what a step shows into summaries; None for no summaries.
      writer: of summaries, or None.
    """

    config: TrainConfig
    client: Client
    compute: GradientStep
    layout: Layout
    shares: list[Share]
    schedule: Schedule
    report: Callable[[Progress], None]
    save: Callable[[], str] | None
    observe: Callable[[Computed, int], None] | None
    writer: SummaryWriter | None

    def run(self, batches: Iterator, pulled: Pulled, stop: StopRequest) -> Pulled:
        """Trains from pulled parameters on; returns what was pulled last.

        Raises:
          DivergedError: names the step, what is not finite and is not pushed, and the last good
            checkpoint.
        """
        done, clock = 0, Clock()
        saved_at = observed_at = time.monotonic()
        while not (pulled.finished or pulled.stopped or stop.signal):
            before = pulled.version
            with clock.timing(1):
                images, labels = next(batches)
                computed = self.compute(
                    images, labels, before, pulled.parameters, pulled.statistics
                )
                self._check(computed, before)
                pulled = self.client.push(contents(computed, self.shares), pulled.versions)
            done += 1
            if done % self.config.log_every_n_steps == 0:
                self._report(computed, pulled.version, clock.seconds_per_step())
            now = time.monotonic()
            if self.observe and (done == 1 or now - observed_at >= self.config.save_summaries_secs):
                self.observe(computed, pulled.version)
                observed_at = now
            if self.save and self._save_due(before, pulled.version, now - saved_at):
                self.save()
                saved_at = time.monotonic()
        if self.writer:
            self.writer.staleness(self.client.untold_staleness, pulled.version)
        return pulled

    def _report(self, computed: Computed, step: int, seconds: float) -> None:
        rate = self.schedule(tf.constant(max(0, step - 1), tf.int64))
        progress = make_progress(step, computed.losses, rate, seconds, self.config.batch_size)
        self.report(progress)
        if self.writer:
            self.writer.progress(progress)
            self.writer.staleness(self.client.untold_staleness, step)
        self.client.untold_staleness.clear()

    def _save_due(self, before: int, step: int, seconds: float) -> bool:
        every, secs = self.config.save_iter, self.config.save_interval_secs
        return bool((every and step // every > before // every) or (secs and seconds >= secs))

    def _check(self, computed: Computed, step: int) -> None:
        bad = not_finite(computed.losses, computed.scales, self.layout)
        names = broken_floats(computed, self.layout)
        if bad := bad + [f"the gradient of {name} is not finite" for name in names]:
            raise DivergedError(
                f"step {step}: {', '.join(bad)}; it was not handed in; "
                f"last good checkpoint: {self._last_good()}."
            )

    def _last_good(self) -> str:
        if not self.save:
            return "see what the chief says"
        return checkpoints.latest_checkpoint(self.config.train_dir) or "none was written yet"
