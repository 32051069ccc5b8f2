"""Five steps of each optimizer are those of TensorFlow 1's definitions, in float64."""

import numpy as np
import pytest
import tensorflow as tf

from terngrad.training.optimizers import make_optimizer
from terngrad.training.slots import SLOTS

START = [1.0, -2.0, 0.5]
GRADIENTS = [
    [0.1, -0.2, 0.3],
    [0.5, 0.4, -0.3],
    [-1.0, 0.0, 0.2],
    [0.3, 0.3, 0.3],
    [0.0, 2.0, -0.1],
]
RATES = [0.1, 0.1, 0.05, 0.05, 0.01]  # a changing rate tells the forms of momentum apart
MOMENTUM = 0.9


def gd(w, g, rate, t, slots):
    return w - rate * g


def momentum(w, g, rate, t, slots):
    slots["v"] = MOMENTUM * slots.get("v", 0.0) + g
    return w - rate * slots["v"]


def rmsprop(w, g, rate, t, slots):
    slots["ms"] = 0.9 * slots.get("ms", 1.0) + 0.1 * g * g
    slots["v"] = MOMENTUM * slots.get("v", 0.0) + rate * g / np.sqrt(slots["ms"] + 1.0)
    return w - slots["v"]


def adam(w, g, rate, t, slots):
    slots["m"] = 0.9 * slots.get("m", 0.0) + 0.1 * g
    slots["v"] = 0.999 * slots.get("v", 0.0) + 0.001 * g * g
    corrected = rate * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
    return w - corrected * slots["m"] / (np.sqrt(slots["v"]) + 1e-8)


@pytest.mark.parametrize("definition", [gd, momentum, rmsprop, adam], ids=lambda f: f.__name__)
def test_five_steps(definition):
    variable = tf.Variable(START)
    optimizer = make_optimizer(definition.__name__, [variable], MOMENTUM)
    expected, slots = np.array(START), {}
    for step, (gradient, rate) in enumerate(zip(GRADIENTS, RATES, strict=True)):
        optimizer.apply([tf.constant(gradient)], tf.constant(rate), tf.constant(step, tf.int64))
        expected = definition(expected, np.array(gradient), rate, step + 1, slots)
        np.testing.assert_allclose(variable, expected, rtol=2e-6)


def test_the_weights_after_five_steps_of_momentum_are_those_worked_out_by_hand():
    variable = tf.Variable(START)
    optimizer = make_optimizer("momentum", [variable], MOMENTUM)
    for step, (gradient, rate) in enumerate(zip(GRADIENTS, RATES, strict=True)):
        optimizer.apply([tf.constant(gradient)], tf.constant(rate), tf.constant(step, tf.int64))
    np.testing.assert_allclose(variable, [0.9616539, -2.0601138, 0.4384637], rtol=1e-6)


def test_an_unknown_optimizer_is_named():
    with pytest.raises(ValueError, match="'lars'; allowed are momentum, adam, gd, rmsprop"):
        make_optimizer("lars", [], 0.9)


@pytest.mark.parametrize("name", SLOTS)
def test_every_optimizer_of_the_table_keeps_the_slots_that_it_names(name):
    optimizer = make_optimizer(name, [tf.Variable(START)], MOMENTUM)
    assert tuple(optimizer.slots) == SLOTS[name]
