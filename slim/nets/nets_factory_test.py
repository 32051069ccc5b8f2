"""Laws of the nets, tested with every net of the factory."""

import numpy as np
import pytest
import tensorflow as tf

from slim.nets import nets_factory
from slim.nets.net_builder import layer_seed

WEIGHT_DECAY = 0.01


def _pairs(*layers: str) -> list[str]:
    return [f"{layer}/{part}" for layer in layers for part in ("kernel", "bias")]


# net -> (parameters, variables, kernels with weight decay)
PUBLISHED = {
    "lenet": (
        1_256_080,
        _pairs("conv1", "conv2", "fc3", "logits"),
        ["conv1/kernel", "conv2/kernel", "fc3/kernel", "logits/kernel"],
    ),
    "lenet_slim": (
        3_274_634,
        _pairs("conv1", "conv2", "fc3", "logits"),
        ["conv1/kernel", "conv2/kernel", "fc3/kernel", "logits/kernel"],
    ),
    "cifarnet": (
        1_756_426,
        _pairs("conv1", "conv2", "fc3", "fc4", "logits"),
        ["fc3/kernel", "fc4/kernel"],
    ),
    "cifar10_alexnet": (
        1_068_298,
        _pairs("conv1", "conv2", "fc3", "fc4", "logits"),
        ["fc3/kernel", "fc4/kernel"],
    ),
    "mlp": (79_510, _pairs("fc1", "logits"), []),
}

# net -> {layer: (stddev of the kernel, bias)}
INITIAL = {
    "lenet": {"conv1": (0.05, 0), "conv2": (0.05, 0), "fc3": (0.048, 0), "logits": (0.0767, 0)},
    "lenet_slim": {"conv1": (0.1, 0), "conv2": (0.1, 0), "fc3": (0.1, 0), "logits": (0.1, 0)},
    "cifarnet": {
        "conv1": (0.05, 0),
        "conv2": (0.05, 0),
        "fc3": (0.04, 0.1),
        "fc4": (0.04, 0.1),
        "logits": (1 / 192, 0),
    },
    "cifar10_alexnet": {
        "conv1": (0.05, 0),
        "conv2": (0.05, 0.1),
        "fc3": (0.04, 0.1),
        "fc4": (0.04, 0.1),
        "logits": (1 / 192, 0),
    },
    "mlp": {"fc1": (1.0, 0), "logits": (1.0, 0)},
}

every_net = pytest.mark.parametrize("name", sorted(nets_factory.NETS))
nets_with_dropout = pytest.mark.parametrize(
    "name", [name for name, spec in nets_factory.NETS.items() if spec.has_dropout]
)


def _build(name: str, **kwargs):
    settings = {"weight_decay": WEIGHT_DECAY, "dropout_keep_prob": 0.5, "seed": 1}
    return nets_factory.build_net(name, num_classes=10, **(settings | kwargs))


def _inputs(model, batch_size: int = 2, seed: int = 7) -> list[tf.Tensor]:
    shape = (batch_size, *model.inputs[0].shape[1:])
    return [tf.random.stateless_normal(shape, [1, 2]), tf.constant([seed, 3])][: len(model.inputs)]


@tf.function
def _step(model, inputs, training=True):
    """Returns logits, regularization losses and the gradients of a loss that uses both."""
    weights = [v.value for v in model.trainable_variables]
    with tf.GradientTape() as tape:
        tape.watch(weights)
        logits, _, losses = model.stateless_call(
            weights, [], inputs, training=training, return_losses=True
        )
        total = tf.reduce_sum(tf.nn.log_softmax(logits)[:, 0]) + sum(losses, 0.0)
    return logits, losses, tape.gradient(total, weights)


def test_the_tables_below_cover_every_net():
    assert set(PUBLISHED) == set(INITIAL) == set(nets_factory.NETS)


@every_net
def test_parameters_and_variable_names_are_the_published_ones(name):
    model = _build(name)
    assert model.count_params() == PUBLISHED[name][0]
    assert [v.path for v in model.trainable_variables] == PUBLISHED[name][1]
    assert not model.non_trainable_variables


@every_net
def test_initial_weights_are_the_published_distribution(name):
    model = _build(name)
    for layer, (stddev, bias) in INITIAL[name].items():
        kernel, biases = (np.asarray(w) for w in model.get_layer(layer).get_weights())
        truncated = name != "mlp"
        # A normal cut at 2 sigma has 0.8796 of the standard deviation.
        expected = stddev * (0.8796 if truncated else 1)
        assert kernel.std() == pytest.approx(expected, rel=5 / np.sqrt(2 * kernel.size))
        assert (np.abs(kernel).max() <= 2 * stddev) == truncated
        np.testing.assert_array_equal(biases, np.float32(bias))


@every_net
def test_equal_seeds_give_equal_weights_and_other_seeds_others(name):
    first, same, other = (_build(name, seed=seed).get_weights() for seed in (5, 5, 6))
    kernels = [i for i, weights in enumerate(first) if weights.ndim > 1]
    assert all(np.array_equal(a, b) for a, b in zip(first, same, strict=True))
    assert not any(np.array_equal(first[i], other[i]) for i in kernels)


def test_layers_of_one_net_have_different_seeds():
    assert len({layer_seed(seed, name) for seed in range(9) for name in ("fc3", "fc4")}) == 18


@every_net
def test_the_layer_called_logits_returns_the_output(name):
    spec, model = nets_factory.get_spec(name), _build(name)
    assert model.get_layer(spec.logits_layer).output is model.output
    assert model.output.shape == (None, 10)
    assert model.layers[-1].name == spec.logits_layer


@every_net
def test_images_have_the_default_size_or_the_one_asked_for(name):
    spec = nets_factory.get_spec(name)
    assert _build(name).inputs[0].shape == (None, spec.image_size, spec.image_size, spec.channels)
    small = _build(name, image_size=spec.min_image_size)
    assert _step(small, _inputs(small))[0].shape == (2, 10)


@every_net
def test_weight_decay_is_half_the_sum_of_squares_of_exactly_the_published_kernels(name):
    model = _build(name)
    decayed = [w for w in model.trainable_variables if w.path in PUBLISHED[name][2]]
    expected = [WEIGHT_DECAY * np.sum(np.square(w.numpy(), dtype=np.float64)) / 2 for w in decayed]
    np.testing.assert_allclose(_step(model, _inputs(model))[1], expected, rtol=1e-5)
    assert not _build(name, weight_decay=0.0).losses


@every_net
def test_the_gradient_reaches_every_variable(name):
    model = _build(name, weight_decay=0.0)
    for variable, gradient in zip(
        model.trainable_variables, _step(model, _inputs(model, 8))[2], strict=True
    ):
        assert np.isfinite(gradient).all() and np.any(gradient), variable.path


@every_net
def test_logits_do_not_depend_on_the_rest_of_the_batch(name):
    model = _build(name)
    images, *seed = _inputs(model, 4)
    whole = _step(model, [images, *seed], training=False)[0]
    part = _step(model, [images[:2], *seed], training=False)[0]
    np.testing.assert_allclose(whole[:2], part, rtol=1e-4, atol=1e-4)


@nets_with_dropout
def test_dropout_is_a_function_of_its_seed(name):
    model = _build(name)
    first, same, other = (_step(model, _inputs(model, seed=seed))[0] for seed in (7, 7, 8))
    np.testing.assert_array_equal(first, same)
    assert not np.allclose(first, other)


@nets_with_dropout
def test_dropout_is_off_in_evaluation_and_when_all_is_kept(name):
    model, keeps_all = _build(name), _build(name, dropout_keep_prob=1.0)
    evaluated = _step(model, _inputs(model, seed=7), training=False)[0]
    np.testing.assert_array_equal(
        evaluated, _step(model, _inputs(model, seed=8), training=False)[0]
    )
    np.testing.assert_allclose(evaluated, _step(keeps_all, _inputs(model))[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "lenet5"}, r"unknown net 'lenet5': allowed are cifar10_alexnet, .*, mlp"),
        ({"image_size": 3}, r"image_size of lenet must be at least 4 pixels, got 3"),
        ({"num_classes": 1}, r"num_classes must be at least 2, got 1"),
        ({"weight_decay": -0.1}, r"weight_decay must not be negative, got -0.1"),
        ({"dropout_keep_prob": 0.0}, r"dropout_keep_prob must be in \(0, 1\], got 0.0"),
    ],
)
def test_a_value_that_is_not_allowed_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        nets_factory.build_net(**({"name": "lenet", "num_classes": 10} | changes))
