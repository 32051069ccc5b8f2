"""Compiled training steps: many in one call into TensorFlow, or one that shows its inside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import tensorflow as tf

from terngrad.codecs.codec import Codec
from terngrad.training.step import Losses, TrainStep


class Outcome(NamedTuple):
    """The last of a number of steps.

    Attributes:
      done: int32 scalar, steps done; fewer than asked for if the last one was not finite.
      losses: of the last step.
      learning_rate: of the last step.
      scales: float32 [v], of the coded variables in the last step.
    """

    done: tf.Tensor
    losses: Losses
    learning_rate: tf.Tensor
    scales: tf.Tensor


class Observation(NamedTuple):
    """One step with what its first local node sent: gradients, and share of zeros by variable."""

    outcome: Outcome
    gradients: list[tf.Tensor]
    zeros: dict[int, tf.Tensor]


class Runner:
    """Runs one kind of step."""

    def __init__(self, step: TrainStep, codecs: Sequence[Codec]) -> None:
        """Compiles `step`, which exchanges its gradients with `codecs`."""
        self._step = step
        self._scale_count = sum(codec.scale_count for codec in codecs)
        self.codecs = codecs
        # Steps leave Python only once a call, so that it does not show in the time of a step.
        self._many = tf.function(self._run_many, autograph=False)
        self._one = tf.function(self._observe, autograph=False)

    def many(self, batches: Iterator, count: int) -> Outcome:
        """Runs `count` steps, stopping after one with a loss or gradient that is not finite."""
        return self._many(batches, tf.constant(count, tf.int32))

    def compile(self, batches: Iterator, observed: bool) -> None:
        """Compiles the steps, so that their first call is as quick as the next."""
        self.many(batches, 0)
        if observed:
            self._one.get_concrete_function(batches)

    def one(self, batches: Iterator) -> Observation:
        """Runs one step and shows what was exchanged."""
        return self._one(batches)

    def _run_many(self, batches, count: tf.Tensor) -> Outcome:
        nothing = tf.zeros([])
        start = Outcome(
            tf.constant(0),
            Losses(nothing, nothing),
            nothing,
            tf.zeros([self._scale_count]),
        )

        def body(last: Outcome) -> tuple[Outcome]:
            result = self._step(*next(batches))
            return (
                Outcome(
                    last.done + 1, result.losses, result.learning_rate, result.aggregate.scales
                ),
            )

        return tf.while_loop(
            lambda last: (last.done < count) & _is_finite(last),
            body,
            (start,),
            parallel_iterations=1,
        )[0]

    def _observe(self, batches) -> Observation:
        result = self._step(*next(batches))
        outcome = Outcome(
            tf.constant(1), result.losses, result.learning_rate, result.aggregate.scales
        )
        zeros = {}
        for codec, encoded in zip(self.codecs, result.aggregate.encoded, strict=True):
            zeros.update(codec.share_of_zeros(encoded))
        return Observation(outcome, result.gradients, zeros)


def _is_finite(outcome: Outcome) -> tf.Tensor:
    values = tf.concat([tf.stack(outcome.losses), outcome.scales], 0)
    return tf.reduce_all(tf.math.is_finite(values))
