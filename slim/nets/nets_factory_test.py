"""Laws of the nets, tested with every net of the factory; see also `slim.nets.testing`.

CI tries the nets for small images and one net of each family; `scripts/test.sh --all` tries all.
"""

import gc
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from slim.nets import catalog, nets_factory, testing
from slim.nets.net_builder import Dropout, layer_seed
from slim.nets.testing import BATCH, CLASSES, DECAYED, PUBLISHED, SMALL, WEIGHT_DECAY

# What CI tries of the larger nets.
FAMILIES = (
    "alexnet",
    "inception_resnet_v2",
    "inception_v1",
    "inception_v3",
    "overfeat",
    "resnet_20",
    "resnet_v1_50",
    "resnet_v2_50",
    "vgg_a",
)
# Kernels that see all positions of an image of the default size.
DEFAULT_KERNELS = {
    "alexnet_v2": {"alexnet_v2/fc6/kernel": (5, 5, 256, 4096)},
    "inception_v1": {"InceptionV1/Logits/Conv2d_0c_1x1/kernel": (1, 1, 1024, 3)},
    "inception_v3": {"InceptionV3/AuxLogits/Conv2d_2a_5x5/kernel": (5, 5, 128, 768)},
    "resnet_v1_50": {"resnet_v1_50/logits/kernel": (1, 1, 2048, 3)},
}


def _marked(names):
    marks = {True: [pytest.mark.slow], False: [pytest.mark.slow, pytest.mark.exhaustive]}
    return [pytest.param(name, marks=marks[name in FAMILIES]) for name in sorted(names)]


ALL = [*sorted(SMALL), *_marked(set(catalog.NETS) - set(SMALL) - {"googlenet"})]


@pytest.fixture(scope="module", params=ALL)
def tried(request):
    """A step of each net; pytest runs all tests of a net before it makes the next."""
    spec = catalog.get_spec(request.param)
    # 33 pixels leave the nets that take any size four positions to normalize over.
    size = spec.image_size if request.param in SMALL else max(33, spec.min_image_size)
    yield testing.try_net(request.param, size)
    gc.collect()  # cycles in earlier nets keep gigabytes of weights


def test_the_table_of_published_nets_covers_every_net():
    assert set(PUBLISHED) == set(catalog.NETS)


def test_names_shapes_and_parameters_are_the_published_ones(tried):
    shapes = {name: tuple(v.shape) for name, v in tried.variables.items()}
    assert testing.parameters(tried) == PUBLISHED[tried.name].parameters
    if tried.name in SMALL:
        pairs = [(f"{layer}/kernel", f"{layer}/bias") for layer in SMALL[tried.name]]
        assert list(shapes) == [name for pair in pairs for name in pair]
    else:
        assert testing.digest(shapes) == PUBLISHED[tried.name].names


def test_initial_weights_have_the_published_spread_and_no_mean(tried):
    for name, kernel in tried.kernels.items():
        values = tf.reshape(kernel, [-1])[:100_000].numpy()
        sigma = testing.expected_stddev(tried.name, name, kernel.shape)
        assert abs(values.std() / sigma - 1) < 6 / math.sqrt(2 * values.size), name
        assert abs(values.mean() / sigma) < 6 / math.sqrt(values.size), name


def test_every_kernel_is_drawn_from_a_seed_of_its_own(tried):
    """The seed is a function of the net's seed and the layer's name, and Keras draws nothing."""
    layers = [layer for layer in tried.model.layers if hasattr(layer, "kernel_initializer")]
    seeds = {layer.name: layer.kernel_initializer.seed for layer in layers}
    seeds = {name: seed for name, seed in seeds.items() if seed is not None}
    assert seeds == {name: layer_seed(1, name) for name in seeds}
    assert len(set(seeds.values())) == len(seeds) >= len(layers) - 1
    assert all(v.dtype == tf.float32 for v in tried.variables.values())  # no generators


def test_the_logits_layers_return_the_outputs(tried):
    spec = catalog.get_spec(tried.name)
    assert len(spec.logits_layers) == len(tried.model.outputs) == 1 + len(spec.auxiliary_weights)
    for name, output in zip(spec.logits_layers, tried.model.outputs, strict=True):
        assert output.shape == (None, CLASSES)
        layer = tried.model.get_layer(name.replace("/", "."))
        assert layer.kernel.shape[-1] == CLASSES
        assert math.prod(layer.output.shape[1:-1]) == 1
        assert _producer(output) is layer
        assert {f"{name}/kernel", f"{name}/bias"} <= set(tried.variables)


def test_weight_decay_is_half_the_sum_of_squares_of_exactly_the_published_kernels(tried):
    decayed = [
        kernel.numpy()
        for name, kernel in tried.kernels.items()
        if name.startswith(DECAYED.get(tried.name, "")) and "depthwise" not in name
        if not name.startswith(testing.WITHOUT_DECAY)
    ]
    expected = [WEIGHT_DECAY * np.sum(np.square(kernel)) / 2 for kernel in decayed]
    np.testing.assert_allclose(sorted(tried.losses), sorted(expected), rtol=1e-5)


def test_a_step_is_finite_and_its_gradient_reaches_every_variable(tried):
    for logits in tried.logits:
        assert logits.shape == (BATCH, CLASSES) and np.isfinite(logits).all()
    for name, gradient in tried.gradients.items():
        assert 0.0 < tf.norm(gradient) < math.inf, name


def test_a_step_moves_all_moving_statistics(tried):
    for name, value in tried.state.items():
        assert 0.0 < tf.norm(value - tried.variables[name]) < math.inf, name
    norms = sum(isinstance(x, keras.layers.BatchNormalization) for x in tried.model.layers)
    assert len(tried.state) == 2 * norms


def test_evaluation_ignores_the_rest_of_the_batch_and_dropout(tried):
    images, *_ = tried.images
    alone = [images[:1], tf.constant([5, 6])][: len(tried.images)]
    batches = (testing.evaluate(tried.model, inputs) for inputs in (tried.images, alone))
    for whole, part in zip(*batches, strict=True):
        np.testing.assert_allclose(whole[:1], part, rtol=1e-3, atol=1e-4 * np.abs(whole).max())


def test_each_dropout_layer_keeps_the_share_asked_for_and_draws_values_of_its_own(tried):
    dropouts = [layer for layer in tried.model.layers if isinstance(layer, Dropout)]
    assert len(dropouts) == PUBLISHED[tried.name].dropouts
    assert len({layer.salt for layer in dropouts}) == len(dropouts)
    assert all(layer.keep_prob == 0.5 for layer in dropouts)
    assert bool(dropouts) == catalog.get_spec(tried.name).has_dropout
    assert not any(isinstance(x, keras.layers.Dropout) for x in tried.model.layers)


@pytest.mark.parametrize("name", ["lenet_slim", "cifarnet"])
def test_dropout_is_a_function_of_its_seed(name):
    model, keeps_all = testing.build(name), testing.build(name, dropout_keep_prob=1.0)
    first, same, other = (
        model(testing.inputs(model, seed=seed), training=True) for seed in (7, 7, 8)
    )
    np.testing.assert_array_equal(first, same)
    assert not np.allclose(first, other)
    evaluated = testing.evaluate(model, testing.inputs(model))[0]
    np.testing.assert_allclose(
        evaluated, keeps_all(testing.inputs(keeps_all), training=True), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("name", sorted(SMALL))
def test_equal_seeds_give_equal_weights_and_other_seeds_others(name):
    first, same, other = (testing.build(name, seed=seed) for seed in (5, 5, 6))
    for a, b, c in zip(first.variables, same.variables, other.variables, strict=True):
        np.testing.assert_array_equal(a, b)
        assert "kernel" not in a.path or not np.array_equal(a, c)


@pytest.mark.parametrize("name", sorted(SMALL))
def test_small_nets_take_images_of_the_default_size_and_of_the_smallest(name):
    spec = catalog.get_spec(name)
    shape = (None, spec.image_size, spec.image_size, spec.channels)
    assert testing.build(name).inputs[0].shape == shape
    small = testing.build(name, image_size=spec.min_image_size)
    assert testing.evaluate(small, testing.inputs(small))[0].shape == (BATCH, CLASSES)


@pytest.mark.parametrize("name", _marked(DEFAULT_KERNELS))
def test_larger_images_have_the_variables_of_the_default_size(name, monkeypatch):
    """Only shapes are asked for, so the weights are zeros."""
    for kind in ("GlorotUniform", "HeNormal", "TruncatedNormal"):
        monkeypatch.setattr(getattr(keras.initializers, kind), "__call__", _zeros)
    spec = catalog.get_spec(name)
    larger = spec.image_size + 33
    model = nets_factory.build_net(name, num_classes=3, image_size=larger)
    assert [output.shape for output in model.outputs] == [(None, 3)] * len(spec.logits_layers)
    assert model.inputs[0].shape == (None, larger, larger, 3)
    shapes = {k: tuple(v.shape) for k, v in nets_factory.named_variables(model).items()}
    assert DEFAULT_KERNELS[name].items() <= shapes.items()


def test_googlenet_is_another_name_of_inception_v1():
    assert catalog.get_spec("googlenet") is catalog.get_spec("inception_v1")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "lenet5"}, r"unknown net 'lenet5': allowed are alexnet, .*, vgg_a"),
        ({"image_size": 3}, r"image_size of lenet must be at least 4 pixels, got 3"),
        ({"name": "vgg_16", "image_size": 223}, r"image_size of vgg_16 must be at least 224 pix"),
        ({"num_classes": 1}, r"num_classes must be at least 2, got 1"),
        ({"weight_decay": -0.1}, r"weight_decay must not be negative, got -0.1"),
        ({"dropout_keep_prob": 0.0}, r"dropout_keep_prob must be in \(0, 1\], got 0.0"),
    ],
)
def test_a_value_that_is_not_allowed_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        nets_factory.build_net(**({"name": "lenet", "num_classes": 10} | changes))


def _producer(output: keras.KerasTensor) -> keras.layers.Layer:
    """Returns the layer that makes an output, apart from changes of its shape."""
    layer = output._keras_history.operation
    while isinstance(layer, keras.layers.Reshape):
        layer = layer.input._keras_history.operation
    return layer


def _zeros(self, shape, dtype=None, **kwargs):
    return tf.zeros(shape, dtype)
