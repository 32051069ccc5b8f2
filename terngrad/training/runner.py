"""Compiled training steps: many in one call into TensorFlow, or one with its gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import tensorflow as tf

from terngrad.codecs.codec import Codec
from terngrad.training.local_step import LocalStep
from terngrad.training.nodes import make_list, read_all
from terngrad.training.sequence_lock import SequenceLock
from terngrad.training.step import Losses, StepResult, TrainStep


class Outcome(NamedTuple):
    """The last of several steps.

    Attributes:
      done: int32 scalar, steps done; fewer than requested if the last one was not finite, or if a
        process requested to stop or to save.
      losses: losses of the last step.
      stop: bool scalar, a process was asked to stop, so that this step was the last.
      learning_rate: learning rate of the last step.
      scales: float32 [p], of the parts of the coded variables in the last step.
      save: bool scalar, all processes must save after this step.
      broken: bool [v], for each exchanged variable in ascending order whether its mean gradient,
        sent as floats, is not finite; False where scales tell it.
    """

    done: tf.Tensor
    losses: Losses
    stop: tf.Tensor
    learning_rate: tf.Tensor
    scales: tf.Tensor
    save: tf.Tensor | bool = False
    broken: tf.Tensor | Sequence[bool] = ()


class Observation(NamedTuple):
    """One step with its first local node's gradients, and their share of zeros by variable."""

    outcome: Outcome
    gradients: list[tf.Tensor]
    zeros: dict[int, tf.Tensor]


class Runner:
    """Runs one kind of step.

    Attributes:
      codecs: codecs of the exchanged gradients.
      is_observable: whether `one` returns computed gradients; those of an excluded step are 0.
      excluded_runner: makes the step if the others make it without this process; None if they
        cannot, and for such a runner itself.
    """

    def __init__(
        self,
        step: TrainStep | LocalStep,
        codecs: Sequence[Codec],
        on_batch: Callable[[], None] | None = None,
        excluded_runner: Runner | None = None,
        *,
        is_observable: bool = True,
        take: Callable[[Iterator], tuple[tf.Tensor, ...]] = next,
        sequence: SequenceLock | None = None,
    ) -> None:
        """Compiles `step`, which exchanges its gradients with `codecs`.

        Takes each batch with `take`, and then calls `on_batch` from any thread. `sequence` learns
        when a step is done. For the other arguments see class. The inner steps of a `LocalStep`
        count as one.
        """
        self._step, self._sequence = step, sequence
        self._on_batch, self._take_batch = on_batch, take
        self.is_observable = is_observable
        self.excluded_runner = excluded_runner
        # A function of its own ends after all its updates, which `sequence` must wait for.
        self._make = tf.function(
            self._make_step, autograph=False, experimental_attributes={"_noinline": True}
        )
        self._scale_count = sum(codec.scale_count for codec in codecs)
        self._coded = [i for codec in codecs if codec.scale_count for i in codec.variables]
        self._exchanged = sorted(i for codec in codecs for i in codec.variables)
        self.codecs = codecs
        # Only one call into TensorFlow for many steps, so that Python does not slow them down. The
        # same function shows gradients: large nets take long to compile.
        self._run = tf.function(self._run_steps, autograph=False)

    def many(self, batches: Iterator, count: int) -> Outcome:
        """Runs `count` steps, or fewer: see `Outcome`."""
        return self._run(batches, tf.constant(count, tf.int32), tf.constant(False))[0]

    @property
    def saves_together(self) -> bool:
        """Whether all processes save after the same step: see `request_save`."""
        return self._step.saves_together

    def request_stop(self) -> None:
        """See `TrainStep`."""
        self._step.request_stop()

    def request_save(self) -> None:
        """See `TrainStep`."""
        self._step.request_save()

    def compile(self, batches: Iterator) -> None:
        """Compiles `many`, so that its first step is as quick as the next."""
        self.many(batches, 0)

    def one(self, batches: Iterator) -> Observation:
        """Runs one step and returns it with its gradients."""
        outcome, shown = self._run(batches, tf.constant(1), tf.constant(True))
        *gradients, zeros = read_all(shown)
        return Observation(outcome, gradients, dict(zip(self._coded, zeros, strict=True)))

    def _run_steps(self, batches, count: tf.Tensor, shows: tf.Tensor) -> tuple[Outcome, tf.Tensor]:
        """Returns the last outcome and, if `shows`, its gradients: see `_show`."""

        def body(last: Outcome, shown: tf.Tensor) -> tuple[Outcome, tf.Tensor]:
            del shown
            outcome, shown = self._advance(batches, last.done, shows)
            if self._sequence:
                with tf.control_dependencies([outcome.stop]):  # a function ends after its updates
                    self._sequence.end()
            return outcome, shown

        return tf.while_loop(
            lambda last, _: (last.done < count) & _is_finite(last) & ~last.stop & ~last.save,
            body,
            (self._nothing(), make_list()),
            parallel_iterations=1,
        )

    def _advance(self, batches, done: tf.Tensor, shows: tf.Tensor) -> tuple[Outcome, tf.Tensor]:
        if isinstance(self._step, LocalStep):  # takes a batch for each inner step
            return self._make(batches, done, shows)
        batch = self._next(batches)
        with tf.control_dependencies(batch):  # an excluded step takes a batch, too, and ignores it
            return self._make(batch, done, shows)

    def _make_step(self, source, done: tf.Tensor, shows: tf.Tensor) -> tuple[Outcome, tf.Tensor]:
        """Makes a step with `source`: a batch or, for local steps, the iterator of batches."""
        if isinstance(self._step, LocalStep):
            result = self._step(lambda: self._next(source))
        else:
            result = self._step(*source)
        # Without `shows` the memory of each gradient is freed after its use.
        shown = tf.cond(shows, lambda: self._show(result), lambda: make_list())
        rate, scales = result.learning_rate, result.aggregate.scales
        broken = self._broken(result.aggregate.means)
        outcome = Outcome(done + 1, result.losses, result.stop, rate, scales, result.save, broken)
        return outcome, shown

    def _broken(self, means: Sequence[tf.Tensor | None]) -> tf.Tensor:
        """Returns for each exchanged variable whether a gradient without scales is not finite."""
        by_variable = dict(zip(self._exchanged, means, strict=True))
        floats = {i: by_variable[i] for i in self._exchanged if i not in self._coded}
        none = tf.zeros([len(self._exchanged)], tf.bool)
        if not floats:
            return none
        found = lambda i: i in floats and ~tf.reduce_all(tf.math.is_finite(floats[i]))
        # NaN and infinity stay in a sum, which writes nothing. A large gradient can make it
        # infinite, too, so each value is then looked at.
        sums = tf.stack([tf.reduce_sum(mean) for mean in floats.values()])
        is_usual = tf.reduce_all(tf.math.is_finite(sums))
        return tf.cond(
            is_usual, lambda: none, lambda: tf.stack([found(i) for i in self._exchanged])
        )

    def _show(self, result: StepResult) -> tf.Tensor:
        """Returns a list of the gradients, and last the shares of zeros."""
        zeros = {}
        for codec, encoded in zip(self.codecs, result.aggregate.encoded, strict=True):
            zeros.update(codec.share_of_zeros(encoded))
        shares = tf.stack([zeros[i] for i in self._coded]) if self._coded else tf.zeros([0])
        return make_list([*result.gradients, shares])

    def _next(self, batches) -> tuple[tf.Tensor, tf.Tensor]:
        batch = self._take_batch(batches)
        if self._on_batch:
            with tf.control_dependencies(batch):
                tf.numpy_function(self._on_batch, [], [])
        return batch

    def _nothing(self) -> Outcome:
        zero = tf.zeros([])
        scales = tf.zeros([self._scale_count])
        no = tf.constant(False)
        broken = tf.zeros([len(self._exchanged)], tf.bool)
        return Outcome(tf.constant(0), Losses(zero, zero), no, zero, scales, no, broken)


def _is_finite(outcome: Outcome) -> tf.Tensor:
    values = tf.concat([tf.stack(outcome.losses), outcome.scales], 0)
    return tf.reduce_all(tf.math.is_finite(values)) & ~tf.reduce_any(outcome.broken)
