"""Laws of the layers that Keras lacks."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from slim.nets import net_builder


def _drop(keep_prob: float, salt: int = 1, seed: tuple[int, int] = (1, 2), size: int = 100_000):
    layer = net_builder.Dropout(keep_prob, salt)
    return layer(tf.ones([size]), tf.constant(seed), training=True).numpy()


def test_dropout_keeps_the_expected_value():
    for keep_prob in (0.2, 0.5, 0.9):
        dropped = _drop(keep_prob)
        np.testing.assert_allclose(np.unique(dropped), [0, 1 / keep_prob], rtol=1e-6)
        sigma = np.sqrt((1 - keep_prob) / keep_prob / dropped.size)
        assert abs(dropped.mean() - 1) < 5 * sigma


def test_dropout_layers_with_other_salts_draw_other_values_from_one_seed():
    agree = np.mean(_drop(0.5, salt=1) == _drop(0.5, salt=2))
    assert abs(agree - 0.5) < 0.01


def test_both_words_of_the_dropout_seed_count():
    first, second, third = (_drop(0.5, seed=seed, size=64) for seed in ((1, 2), (1, 3), (2, 2)))
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, third)


@pytest.mark.parametrize("size", [(1, 1), (2, 3)])
def test_a_covering_convolution_is_the_convolution(size):
    images = tf.random.stateless_normal([4, *size, 5], [1, 2])
    results = []
    for kind in (net_builder.CoveringConv2D, keras.layers.Conv2D):
        layer = kind(7, size, activation="relu", kernel_initializer=keras.initializers.HeNormal(1))
        layer.build(images.shape)
        with tf.GradientTape() as tape:
            outputs = layer(images)
            loss = tf.reduce_sum(outputs**2)
        results.append([outputs, *tape.gradient(loss, [layer.kernel.value, layer.bias.value])])
    assert results[0][0].shape == layer.compute_output_shape(images.shape) == (4, 1, 1, 7)
    for mine, other in zip(*results, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


def test_response_normalization_is_its_formula_and_has_a_gradient():
    values = tf.random.stateless_normal([2, 3, 3, 12], [1, 2])
    layer = net_builder.LocalResponseNormalization(radius=2, bias=2.0, alpha=0.5, beta=0.75)
    squares = np.pad(np.square(values), [(0, 0)] * 3 + [(2, 2)])
    sums = sum(squares[..., i : i + 12] for i in range(5))
    np.testing.assert_allclose(layer(values), values / (2 + 0.5 * sums) ** 0.75, rtol=1e-5)
    theory, numeric = tf.test.compute_gradient(layer, [values])
    np.testing.assert_allclose(theory[0], numeric[0], atol=1e-3)


def test_weight_decay_has_the_gradient_rate_times_weights():
    weights = tf.constant([[1.0, -2.0], [3.0, 0.5]])
    with tf.GradientTape() as tape:
        tape.watch(weights)
        loss = net_builder.WeightDecay(0.5)(weights)
    np.testing.assert_allclose(loss, 0.5 * (1 + 4 + 9 + 0.25) / 2)
    np.testing.assert_allclose(tape.gradient(loss, weights), 0.5 * weights)
