"""Updates by kernels: the bits of TensorFlow's own with the means that the sums stand for."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from terngrad import planes
from terngrad.ops.gradient_kernels import Averages, Sums, Update
from terngrad.testing.gradients import (
    assert_equal_with_signs,
    edge_values,
    key_of,
    normal,
    scales,
    seeds,
    sizes,
)


def updated_by_tensorflow(rule, rate, mean, weight, *slots):
    """TensorFlow's own kernel of a rule, with `SETTINGS`."""
    weight, *slots = (variable.handle for variable in (weight, *slots))
    if rule == "momentum":
        tf.raw_ops.ResourceApplyMomentum(
            var=weight, accum=slots[0], lr=rate, grad=mean, momentum=0.9
        )
    elif rule == "adam":
        tf.raw_ops.ResourceApplyAdam(
            var=weight, m=slots[0], v=slots[1], lr=rate, grad=mean, beta1=0.75, beta2=0.875,
            beta1_power=0.0, beta2_power=0.0, epsilon=1e-7,
        )  # fmt: skip
    elif rule == "rmsprop":
        tf.raw_ops.ResourceApplyRMSProp(
            var=weight, ms=slots[0], mom=slots[1], lr=rate, grad=mean, rho=0.875, momentum=0.9,
            epsilon=1e-7,
        )  # fmt: skip
    else:
        tf.raw_ops.ResourceApplyKerasMomentum(
            var=weight, accum=slots[0], lr=rate, grad=mean, momentum=0.9,
            use_nesterov=rule == "nesterov",
        )  # fmt: skip


RULES = {"momentum": 1, "keras_momentum": 1, "nesterov": 1, "adam": 2, "rmsprop": 2}  # slots
SETTINGS = {"momentum": 0.9, "mean_share": 0.25, "square_share": 0.125, "epsilon": 1e-7}


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
@given(st.lists(sizes, min_size=1, max_size=4), st.integers(2, 18), st.data(), seeds)
@settings(max_examples=20)
def test_law_3_updates_with_sums_equal_tensorflows_with_their_means(
    rule, natives, lengths, k, data, seed
):
    groups = planes.padded(sum(lengths)) // 32
    rng = np.random.default_rng(seed)
    words = tf.constant(rng.integers(0, 2**32, (groups, k), np.uint32))
    units = tf.constant([data.draw(scales) for _ in lengths], tf.float32)
    sums = Sums(tuple(range(len(lengths))), words, units, tf.constant(3))
    start = [normal([seed, i], n) * data.draw(edge_values) for i, n in enumerate(lengths)]
    rate = tf.constant(data.draw(st.sampled_from([0.0, 0.01, 1e-40, 3.0])), tf.float32)
    gain = tf.constant(data.draw(st.sampled_from([9.0, 1.0, 1e-4, 0.0])), tf.float32)
    averaged = data.draw(st.booleans())

    def after(update):
        weights, *slots, averages = (
            [tf.Variable(tf.abs(v) if held else v, trainable=False) for v in start]
            for held in range(2 + RULES[rule])
        )
        step = tf.function(lambda: update(weights, slots, averages), autograph=False)
        for _ in range(2):
            step()
        return [v.numpy() for v in sum([*slots, averages], weights)]

    def update_with_means(weights, slots, averages):
        means = natives[0].decode(words, units, sums.nodes, [(n,) for n in lengths])
        for mean, weight, average, *held in zip(means, weights, averages, *slots, strict=True):
            updated_by_tensorflow(rule, rate, mean, weight, *held)
            if averaged:
                tf.raw_ops.ResourceApplyProximalGradientDescent(
                    var=average.handle, alpha=-gain, l1=0.0, l2=-1.0, delta=weight.read_value()
                )

    def update_with_sums(native, weights, slots, averages):
        given = Averages(averages, gain) if averaged else None
        native.apply_update(sums, weights, slots, Update(rule, rate, **SETTINGS), given)

    expected = after(update_with_means)
    for native in natives:
        got = after(functools.partial(update_with_sums, native))
        assert_equal_with_signs(got, expected, native.title)


@pytest.mark.parametrize(
    ("rule", "weight", "slots"),
    [
        ("momentum", 0.0, [4.0]),  # 0.25 * 4 + 3
        ("keras_momentum", 1.5, [-0.5]),  # 0.25 * 4 - 0.5 * 3
        ("nesterov", 0.375, [-0.5]),
        ("adam", 1.5, [3.5, 4.0]),  # 4 + (3 - 4) / 2, 1 + (9 - 1) * 0.375; 1.75 / (2 + 1.5)
        ("rmsprop", 0.4375, [5.875, 1.5625]),  # 4 + (9 - 4) * 0.375; 0.25 * 1 + 1.5 / root
    ],
)
def test_updates_are_those_of_the_rule(native, rule, weight, slots):
    words = native.encode([tf.ones([40])], [0], tf.ones([1]), tf.ones([1]), key_of())  # all 1
    begun = [4.0, 1.0][: len(slots)]
    epsilon = {"adam": 1.5, "rmsprop": (1.5 / 1.3125) ** 2 - 5.875}.get(rule, 0.0)
    weights, *held = (tf.Variable(tf.fill([40], value)) for value in (2.0, *begun))
    update = Update(rule, tf.constant(0.5), 0.25, 0.5, 0.375, epsilon)
    sums = Sums((0,), words, tf.constant([3.0]), tf.constant(1))
    native.apply_update(sums, [weights], [[slot] for slot in held], update)
    for found, expected in zip([weights, *held], [weight, *slots], strict=True):
        np.testing.assert_allclose(found, tf.fill([40], expected), rtol=1e-6)


def test_averages_are_those_of_the_updated_weights(native):
    sums, weights = one_sum()
    velocities, shadows = tf.Variable(weights), tf.Variable(tf.fill([33], 5.0))
    averages = Averages([shadows], tf.constant(0.25))
    native.apply_update(sums, [weights], [[velocities]], HALVING, averages)
    np.testing.assert_allclose(shadows, tf.fill([33], (5.0 + 0.25 * 0.75) / 1.25), rtol=1e-6)


def one_sum(elements=33, rows=2):
    words = tf.zeros([rows, 2], tf.uint32)
    return Sums((0,), words, tf.ones([1]), tf.constant(1)), tf.Variable(tf.ones([elements]))


HALVING = Update("momentum", tf.constant(0.5), 0.5)


def test_an_update_changes_no_tensor_that_was_read_before(native):
    sums, weights = one_sum()
    velocities = tf.Variable(weights)
    read = [weights.read_value(), velocities.read_value()]
    native.apply_update(sums, [weights], [[velocities]], HALVING)
    np.testing.assert_array_equal(weights, tf.fill([33], 0.75))
    np.testing.assert_array_equal(velocities, tf.fill([33], 0.5))
    for tensor in read:
        np.testing.assert_array_equal(tensor, tf.ones([33]))


def test_law_10_an_update_that_does_not_fit_is_refused(native):
    sums, weights = one_sum()
    same = tf.Variable(weights)
    averages = Averages([tf.Variable(weights)], tf.constant(0.5))
    for sums_of_others, slots, update, text in [
        (one_sum(rows=3)[0], [same], HALVING, "shape of words is"),
        (
            sums,
            [tf.Variable(tf.ones([32]))],
            HALVING,
            r"weights have shape \[33\]; a slot of theirs",
        ),
        (sums, [tf.Variable(tf.ones([33], tf.float64))], HALVING, "no values of type float"),
        (sums._replace(units=tf.ones([2])), [same], HALVING, "shape of units is"),
        (sums._replace(nodes=tf.constant(0)), [same], HALVING, "nodes must be"),
        (sums, [weights], HALVING, "a variable occurs twice"),
        (sums, [same, same], HALVING, "there are 2 slots; allowed are 1"),
        (sums, [same], HALVING._replace(rule="adam"), "there are 1 slots; allowed are 2"),
        (sums, [same], HALVING._replace(rate=tf.ones([2])), "rate must be a scalar"),
        (sums, [same], HALVING._replace(rule="lars"), "lars"),
    ]:
        with pytest.raises(tf.errors.InvalidArgumentError, match=text):
            native.apply_update(
                sums_of_others, [weights], [[slot] for slot in slots], update, averages
            )
    for others, text in [
        (Averages([weights], averages.gain), "a variable occurs twice"),
        (Averages([same, averages.shadows[0]], averages.gain), "2 averages; allowed are 0 and 1"),
        (Averages([tf.Variable(tf.ones([32]))], averages.gain), r"an average of theirs has \[32\]"),
        (Averages(averages.shadows, tf.ones([1])), "gain must be a scalar"),
    ]:
        with pytest.raises(tf.errors.InvalidArgumentError, match=text):
            native.apply_update(sums, [weights], [[same]], HALVING, others)
    np.testing.assert_array_equal(weights, tf.ones([33]))
    np.testing.assert_array_equal(averages.shadows[0], tf.ones([33]))
