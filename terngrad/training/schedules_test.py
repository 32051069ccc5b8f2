"""Learning rates by step."""

import numpy as np
import pytest
import tensorflow as tf

from terngrad.training import schedules
from terngrad.training.averages import MovingAverages


def rates(schedule, steps):
    return [float(schedule(tf.constant(step, tf.int64))) for step in steps]


def test_fixed():
    assert rates(schedules.fixed(0.5), [0, 10**9]) == [0.5, 0.5]


def test_exponential_is_a_staircase():
    schedule = schedules.exponential(1.0, decay_steps=10, factor=0.1)
    np.testing.assert_allclose(rates(schedule, [0, 9, 10, 19, 20]), [1, 1, 0.1, 0.1, 0.01], 1e-6)


def test_polynomial_ends_where_it_should_and_stays_there():
    schedule = schedules.polynomial(1.0, decay_steps=100, power=0.5, end_rate=0.1)
    expected = [1.0, 0.9 * np.sqrt(0.5) + 0.1, 0.1, 0.1]
    np.testing.assert_allclose(rates(schedule, [0, 50, 100, 200]), expected, 1e-6)


def test_polynomial_of_an_endless_run_stays_at_its_start():
    schedule = schedules.polynomial(1.0, decay_steps=1 << 62, power=0.5, end_rate=0.0)
    assert rates(schedule, [0, 1000]) == [1.0, 1.0]


def test_linear_warmup_joins_the_schedule():
    schedule = schedules.linear_warmup(0.2, 10, schedules.fixed(1.0))
    np.testing.assert_allclose(rates(schedule, [0, 5, 10, 11]), [0.2, 0.6, 1.0, 1.0], 1e-6)


def test_a_duration_that_is_not_positive_is_named():
    with pytest.raises(ValueError, match="decay_steps is 0; allowed are positive"):
        schedules.exponential(1.0, 0, 0.1)


def test_moving_averages_follow_the_published_decay():
    weight = tf.Variable([1.0])
    averages = MovingAverages([weight], 0.9999)
    expected = 1.0
    for step in range(20):
        weight.assign([float(step)])
        averages.update(tf.constant(step, tf.int64))
        decay = min(0.9999, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * step
        np.testing.assert_allclose(averages.shadows[0], [expected], rtol=1e-5)
