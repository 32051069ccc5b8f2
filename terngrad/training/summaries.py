"""What TensorBoard shows of a training run: summaries, and a profile of some steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from tensorboard.plugins.histogram import metadata

from terngrad import allocator
from terngrad.codecs.codec import Codec, Payload
from terngrad.layout import Layout
from terngrad.training.errors import first_line
from terngrad.training.schedules import Schedule
from terngrad.training.timing import Progress

_PLAN_POINTS = 200
_BUCKETS = 30  # of a histogram, as many as `tf.summary.histogram` has


class Counted(NamedTuple):
    """What a process has exchanged in all its steps so far, without headers."""

    steps: int
    sent: int
    received: int


class EventWriter:
    """Writes summaries to event files until an error, such as that of a full disk."""

    def __init__(self, directory: str) -> None:
        """Opens a file in `directory`; raises OSError if that is not writable."""
        try:
            self._writer = tf.summary.create_file_writer(directory)
        except tf.errors.OpError as error:
            raise OSError(
                f"{directory}: summaries cannot be written: {first_line(error)}"
            ) from error
        self._is_broken = False

    @contextlib.contextmanager
    def at(self, step: int) -> Iterator[None]:
        """Writes what the block writes, for a step; prints an error and ends the summaries."""
        if self._is_broken:
            with tf.summary.record_if(False):
                yield
            return
        try:
            with self._writer.as_default(step):
                yield
        except (tf.errors.OpError, OSError) as error:
            self._is_broken = True
            reason = first_line(error) if isinstance(error, tf.errors.OpError) else error
            print(f"No more summaries are written: {reason}", flush=True)

    def flush(self) -> None:
        """Writes everything to disk."""
        if not self._is_broken:
            with self.at(0):
                self._writer.flush()

    def close(self) -> None:
        """Writes everything to disk and closes the file."""
        if not self._is_broken:
            with self.at(0):
                self._writer.close()


class SummaryWriter(EventWriter):
    """Writes scalars and histograms of a run."""

    def __init__(
        self,
        directory: str,
        layout: Layout,
        traffic: Callable[[Sequence[Codec]], Sequence[Payload]],
        counted: Callable[[], Counted] | None = None,
    ) -> None:
        """Opens a file.

        Args:
          directory: folder of the event files.
          layout: the variables.
          traffic: returns the bytes of a step, by variable.
          counted: returns what has been exchanged so far, if the bytes of a step differ from
            `traffic`.

        Raises:
          OSError: the folder is not writable.
        """
        super().__init__(directory)
        self._layout = layout
        self._traffic = traffic
        self._count, self._counted = counted, counted() if counted else None
        self._faults: tuple[int, int] | None = None  # step and page faults at the last report

    def progress(self, progress: Progress) -> None:
        """Writes losses, learning rate and speed."""
        with self.at(progress.step):
            tf.summary.scalar("losses/entropy_loss", progress.entropy_loss)
            tf.summary.scalar("losses/reg_loss", progress.reg_loss)
            tf.summary.scalar("losses/total_loss", progress.total_loss)
            tf.summary.scalar("learning_rate", progress.learning_rate)
            tf.summary.scalar("examples_per_sec", progress.examples_per_sec)
            self._page_faults(progress.step)

    def _page_faults(self, step: int) -> None:
        """Writes the page faults of a step, on average since the last report."""
        before, self._faults = self._faults, (step, allocator.page_faults())
        if before is not None and step > before[0]:
            faults = (self._faults[1] - before[1]) / (step - before[0])
            tf.summary.scalar("page_faults_per_step", faults)

    def gradients(
        self, gradients: Sequence[tf.Tensor], zeros: Mapping[int, tf.Tensor], step: int
    ) -> None:
        """Writes one node's gradients, and the share of zeros among its codes by variable."""
        with self.at(step):
            for name, gradient in zip(self._layout.names, gradients, strict=True):
                _histogram(f"gradients/{name}", gradient.numpy())
            for variable, share in zeros.items():
                tf.summary.scalar(f"zeros/{self._layout.names[variable]}", share)

    def traffic(self, codecs: Sequence[Codec], step: int) -> None:
        """Writes the bytes that these codecs exchange in a step.

        Where bytes are counted, the totals are means of the steps since the last report, and count
        losses and moving statistics, too; those of a variable are the most that it may need.
        """
        by_variable = self._traffic(codecs)
        sent = sum(payload.sent for payload in by_variable)
        received = sum(payload.received for payload in by_variable)
        if self._count and self._counted:
            before, self._counted = self._counted, self._count()
            if (steps := self._counted.steps - before.steps) > 0:
                sent = (self._counted.sent - before.sent) / steps
                received = (self._counted.received - before.received) / steps
        with self.at(step):
            for name, payload in zip(self._layout.names, by_variable, strict=True):
                tf.summary.scalar(f"bytes_sent/{name}", payload.sent)
                tf.summary.scalar(f"bytes_received/{name}", payload.received)
            tf.summary.scalar("bytes_sent_per_step", sent)
            tf.summary.scalar("bytes_received_per_step", received)
            tf.summary.scalar("bits_per_parameter", 8.0 * sent / self._layout.size)

    def staleness(self, values: Sequence[int], step: int) -> None:
        """Writes the staleness of updates: how many others came between pull and push."""
        if not values:
            return
        numbers = tf.constant(values, tf.float32)
        with self.at(step):
            _histogram("staleness", numbers.numpy())
            tf.summary.scalar("staleness/mean", tf.reduce_mean(numbers))
            tf.summary.scalar("staleness/max", tf.reduce_max(numbers))

    def plan(self, schedule: Schedule, first: int, last: int) -> None:
        """Writes the planned learning rate from step `first` to `last`."""
        for step in sorted(
            {first + (last - first) * i // _PLAN_POINTS for i in range(_PLAN_POINTS + 1)}
        ):
            with self.at(step):
                rate = schedule(tf.constant(step, tf.int64))
                tf.summary.scalar("learning_rate_plan", rate)


def _histogram(tag: str, values: np.ndarray) -> None:
    """Writes a histogram of the finite values, like `tf.summary.histogram` but in little memory.

    That one multiplies the values by the number of buckets, in float64: 240 bytes a value.
    """
    values = values.reshape(-1)
    if not np.isfinite([values.min(initial=0), values.max(initial=0)]).all():
        values = values[np.isfinite(values)]
    # In float64, where neighbours in float32 still have room for the buckets between them.
    low, high = (np.float64(values.min()), np.float64(values.max())) if values.size else (0.0, 0.0)
    if low < high:
        counts, edges = np.histogram(values, _BUCKETS, (low, high))
    else:
        counts, edges = np.zeros(_BUCKETS), np.full(_BUCKETS + 1, low)
        counts[-1] = values.size
    buckets = np.stack([edges[:-1], edges[1:], counts], axis=1)
    tf.summary.write(
        tag, buckets, metadata=metadata.create_summary_metadata(display_name=None, description=None)
    )


class Profiler:
    """Profiles a range of steps, or as many of it as the run makes."""

    def __init__(self, steps: tuple[int, int] | None, directory: str) -> None:
        """Profiles from the first of `steps` to the second (None = never), to `directory`."""
        self._first, self._last = steps or (-1, -1)
        self._directory = directory
        self._running = False

    def at(self, step: int) -> None:
        """Starts or ends the profile; call it before the next steps with the number done."""
        if not self._running and self._first <= step < self._last:
            tf.profiler.experimental.start(self._directory)
            self._running = True
        elif step >= self._last:
            self.close()

    def close(self) -> None:
        """Ends the profile, if one is under way."""
        if self._running:
            tf.profiler.experimental.stop()
            self._running = False
            print(f"Profile for TensorBoard: {self._directory}", flush=True)
