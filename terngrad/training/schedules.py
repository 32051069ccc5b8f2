"""Learning rate by step: pure functions from an int64 scalar step to a float32 scalar rate.

All durations are in steps.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

Schedule = Callable[[tf.Tensor], tf.Tensor]


def fixed(rate: float) -> Schedule:
    """Returns the same rate at every step."""
    return lambda step: tf.constant(rate, tf.float32)


def exponential(rate: float, decay_steps: int, factor: float) -> Schedule:
    """Returns a staircase: rate * factor^floor(step / decay_steps).

    Raises:
      ValueError: `decay_steps` is not positive.
    """
    _check_positive(decay_steps)
    return lambda step: rate * tf.pow(factor, tf.cast(step // decay_steps, tf.float32))


def polynomial(rate: float, decay_steps: int, power: float, end_rate: float) -> Schedule:
    """Returns (rate - end_rate) * (1 - step / decay_steps)^power + end_rate; then end_rate.

    Raises:
      ValueError: `decay_steps` is not positive.
    """
    _check_positive(decay_steps)

    def schedule(step: tf.Tensor) -> tf.Tensor:
        done = tf.cast(tf.minimum(step, decay_steps), tf.float32) / decay_steps
        return (rate - end_rate) * tf.pow(1.0 - done, power) + end_rate

    return schedule


def linear_warmup(start_rate: float, warmup_steps: int, schedule: Schedule) -> Schedule:
    """Rises from `start_rate` to the schedule's rate over the first `warmup_steps` steps."""
    if warmup_steps == 0:
        return schedule

    def warmed(step: tf.Tensor) -> tf.Tensor:
        share = tf.minimum(tf.cast(step, tf.float32) / warmup_steps, 1.0)
        return start_rate + share * (schedule(step) - start_rate)

    return warmed


def constant_warmup(start_rate: float, warmup_steps: int, schedule: Schedule) -> Schedule:
    """Stays at `start_rate` for the first `warmup_steps` steps, then follows the schedule."""
    return lambda step: tf.where(step < warmup_steps, start_rate, schedule(step))


def _check_positive(decay_steps: int) -> None:
    if decay_steps <= 0:
        raise ValueError(f"decay_steps is {decay_steps}; allowed are positive numbers of steps.")
