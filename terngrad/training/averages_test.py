"""Moving averages against their formula."""

import numpy as np
import pytest
import tensorflow as tf

from terngrad.training.averages import MovingAverages


@pytest.mark.parametrize("decay", [0.9, 0.9999])
def test_a_late_step_keeps_decay_and_an_early_one_less(decay):
    variable = tf.Variable([1.0, -2.0, 0.0])
    averages = MovingAverages([variable], decay)
    update = tf.function(averages.update)
    expected = variable.numpy().astype(np.float64)
    for step in (0, 1, 2, 10, 1000, 100_000):
        variable.assign_add([0.5, 0.25, -1.0])
        kept = min(decay, (1 + step) / (10 + step))
        expected = kept * expected + (1 - kept) * variable.numpy()
        update(tf.constant(step, tf.int64))
    np.testing.assert_allclose(averages.shadows[0].numpy(), expected, rtol=2e-6)


def test_averages_of_constant_weights_stay_at_them():
    variable = tf.Variable(tf.random.stateless_normal([1000], [1, 2]))
    averages = MovingAverages([variable], 0.999)
    for step in range(50):
        averages.update(tf.constant(step, tf.int64))
    np.testing.assert_allclose(averages.shadows[0].numpy(), variable.numpy(), rtol=1e-5)


def test_averages_start_at_the_initial_weights():
    averages = MovingAverages([tf.Variable([3.0])], 0.9)
    assert averages.shadows[0].numpy() == 3.0


@pytest.mark.parametrize(("stride", "fragments"), [(48, 24), (64, 32), (48, 48), (2000, 10)])
def test_the_first_exchange_of_many_fragments_makes_averages_of_the_weights(stride, fragments):
    variable = tf.Variable([0.0, 0.0, 0.0])
    averages = MovingAverages([variable], 0.9999, stride)
    variable.assign([1.0, 0.5, -1e5])
    tf.function(averages.update)(tf.constant(stride // fragments - stride, tf.int64))
    np.testing.assert_allclose(averages.shadows[0].numpy(), variable.numpy(), rtol=1e-6)
