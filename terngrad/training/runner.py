"""Compiled training steps: many in one call into TensorFlow, or one with its gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import tensorflow as tf

from terngrad.codecs.codec import Codec
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
      scales: float32 [v], of the coded variables in the last step.
      save: bool scalar, all processes must save after this step.
    """

    done: tf.Tensor
    losses: Losses
    stop: tf.Tensor
    learning_rate: tf.Tensor
    scales: tf.Tensor
    save: tf.Tensor | bool = False


class Observation(NamedTuple):
    """One step with its first local node's gradients, and their share of zeros by variable."""

    outcome: Outcome
    gradients: list[tf.Tensor]
    zeros: dict[int, tf.Tensor]


class Runner:
    """Runs one kind of step.

    Attributes:
      codecs: codecs of the exchanged gradients.
      is_observable: whether `one` returns computed gradients; those of a follower are 0.
      follower: runs the same kind of step if the others make it without this process; None for a
        follower, or if there are no others.
    """

    def __init__(
        self,
        step: TrainStep,
        codecs: Sequence[Codec],
        on_batch: Callable[[], None] | None = None,
        follower: Runner | None = None,
        *,
        is_observable: bool = True,
        take: Callable[[Iterator], tuple[tf.Tensor, ...]] = next,
        sequence: SequenceLock | None = None,
    ) -> None:
        """Compiles `step`, which exchanges its gradients with `codecs`.

        Takes each batch with `take`, and then calls `on_batch` from any thread. `sequence` learns
        when a step is done. For the other arguments see class.
        """
        self._step, self._sequence = step, sequence
        self._on_batch, self._take_batch = on_batch, take
        self.is_observable = is_observable
        self.follower = follower
        # TensorFlow's collectives distinguish the iterations of a loop, but processes make
        # different numbers of steps per call. In its own function, a step is always the same.
        self._take = tf.function(step, autograph=False, experimental_attributes={"_noinline": True})
        self._scale_count = sum(codec.scale_count for codec in codecs)
        self.codecs = codecs
        # Only one call into TensorFlow for many steps, so that Python does not slow them down.
        self._many = tf.function(self._run_many, autograph=False)
        self._one = tf.function(self._observe, autograph=False)

    def many(self, batches: Iterator, count: int) -> Outcome:
        """Runs `count` steps, or fewer: see `Outcome`."""
        return self._many(batches, tf.constant(count, tf.int32))

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
        return self._one(batches)

    def _run_many(self, batches, count: tf.Tensor) -> Outcome:
        def body(last: Outcome) -> tuple[Outcome]:
            return (_outcome(self._make(batches), last.done + 1),)

        return tf.while_loop(
            lambda last: (last.done < count) & _is_finite(last) & ~last.stop & ~last.save,
            body,
            (self._nothing(),),
            parallel_iterations=1,
        )[0]

    def _make(self, batches) -> StepResult:
        batch = self._next(batches)
        with tf.control_dependencies(batch):  # a follower ignores its batch, but must take it
            result = self._take(*batch)
        if self._sequence:
            with tf.control_dependencies([result.stop]):  # a function ends after all its updates
                self._sequence.end()
        return result

    def _next(self, batches) -> tuple[tf.Tensor, tf.Tensor]:
        batch = self._take_batch(batches)
        if self._on_batch:
            with tf.control_dependencies(batch):
                tf.numpy_function(self._on_batch, [], [])
        return batch

    def _observe(self, batches) -> Observation:
        # Also in a loop: outside of loops, oneDNN uses other kernels on a second logical CPU, and
        # the parameters would depend on when summaries are written.
        start = Observation(self._nothing(), self._step.zeros_like_gradients(), self._no_zeros())
        return tf.while_loop(
            lambda last: last.outcome.done < 1,
            lambda last: (self._observation(self._make(batches)),),
            (start,),
            parallel_iterations=1,
        )[0]

    def _observation(self, result: StepResult) -> Observation:
        zeros = {}
        for codec, encoded in zip(self.codecs, result.aggregate.encoded, strict=True):
            zeros.update(codec.share_of_zeros(encoded))
        return Observation(_outcome(result, tf.constant(1)), result.gradients, zeros)

    def _nothing(self) -> Outcome:
        zero = tf.zeros([])
        scales = tf.zeros([self._scale_count])
        no = tf.constant(False)
        return Outcome(tf.constant(0), Losses(zero, zero), no, zero, scales, no)

    def _no_zeros(self) -> dict[int, tf.Tensor]:
        coded = [i for codec in self.codecs if codec.scale_count for i in codec.variables]
        return {variable: tf.zeros([]) for variable in coded}


def _outcome(result: StepResult, done: tf.Tensor) -> Outcome:
    rate, scales = result.learning_rate, result.aggregate.scales
    return Outcome(done, result.losses, result.stop, rate, scales, result.save)


def _is_finite(outcome: Outcome) -> tf.Tensor:
    values = tf.concat([tf.stack(outcome.losses), outcome.scales], 0)
    return tf.reduce_all(tf.math.is_finite(values))
