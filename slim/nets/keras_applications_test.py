"""Nets that keras.applications defines too have its parameters, and its outputs.

`slim/weights/keras_files_test.py` shows it of inception_v3, whose weights go through a file there.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from slim.nets import nets_factory, testing
from slim.nets.testing import CLASSES

pytestmark = pytest.mark.slow


@pytest.fixture
def built(monkeypatch):
    """Layers with weights in the order in which they are made; the order of both definitions."""
    layers = []

    def noting(original):
        def build(layer, input_shape):
            layers.append(layer)
            original(layer, input_shape)

        return build

    for kind in (keras.layers.Conv2D, keras.layers.BatchNormalization, keras.layers.Dense):
        monkeypatch.setattr(kind, "build", noting(kind.build))
    return layers


def _copies(built, name: str, published, size: int) -> tuple[keras.Model, keras.Model]:
    """Returns our net and Keras', with our weights and with equal, uneven moving statistics."""
    theirs = published(
        weights=None, classes=CLASSES, input_shape=(size, size, 3), classifier_activation=None
    )
    sources, _ = built[:], built.clear()
    ours = nets_factory.build_net(
        name, num_classes=CLASSES, image_size=size, for_training=False, seed=3
    )
    targets = [layer for layer in built if "AuxLogits" not in layer.name]
    rng = np.random.default_rng(0)
    for mine, other in zip(targets, sources, strict=True):
        if isinstance(mine, keras.layers.BatchNormalization):
            mine.set_weights([rng.uniform(0.5, 1.5, w.shape) for w in mine.get_weights()])
        weights, shapes = mine.get_weights(), [w.shape for w in other.get_weights()]
        if len(weights) < len(shapes):  # Keras' ResNet has biases before normalization
            weights.append(np.zeros(shapes[-1]))
        other.set_weights([w.reshape(s) for w, s in zip(weights, shapes, strict=True)])
    return ours, theirs


def _outputs(model: keras.Model, seed: int = 1) -> np.ndarray:
    images = tf.random.stateless_normal((2, *model.inputs[0].shape[1:]), [seed, 2])
    inputs = [images, tf.zeros([2], tf.int32)][: len(model.inputs)]
    return testing.evaluate(model, inputs)[0].numpy()


def _assert_equal_outputs(ours: keras.Model, theirs: keras.Model) -> None:
    expected = _outputs(theirs)
    np.testing.assert_allclose(_outputs(ours), expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "published", "size"),
    [
        ("vgg_16", keras.applications.VGG16, 224),
        ("inception_resnet_v2", keras.applications.InceptionResNetV2, 139),
    ],
)
def test_parameters_and_outputs_equal_keras(built, name, published, size):
    ours, theirs = _copies(built, name, published, size)
    assert ours.count_params() == theirs.count_params()
    _assert_equal_outputs(ours, theirs)


def test_resnet_v2_equals_keras_after_the_first_pooling(built):
    """Keras pads the first pooling with zeros, and on both sides; TF-Slim uses SAME padding."""
    ours, theirs = _copies(built, "resnet_v2_50", keras.applications.ResNet50V2, 64)
    assert ours.count_params() == theirs.count_params()
    _assert_equal_outputs(
        keras.Model(ours.get_layer("resnet_v2_50.pool1").output, ours.output),
        keras.Model(theirs.get_layer("pool1_pool").output, theirs.output),
    )


@pytest.mark.exhaustive
def test_resnet_v1_differs_from_keras_in_strides_and_biases_only(built):
    """Keras strides in the first 1x1 convolution of a block, TF-Slim in the last 3x3 one.

    Its convolutions also have biases, which normalization cancels. Up to the first stride the
    outputs are equal.
    """
    ours, theirs = _copies(built, "resnet_v1_50", keras.applications.ResNet50, 64)
    convs = [x for x in ours.layers if isinstance(x, keras.layers.Conv2D) and not x.use_bias]
    assert theirs.count_params() - ours.count_params() == sum(x.filters for x in convs) == 26_560
    last = ours.get_layer("resnet_v1_50.block1.unit_2.bottleneck_v1.relu").output
    _assert_equal_outputs(
        keras.Model(ours.get_layer("resnet_v1_50.pool1").output, last),
        keras.Model(
            theirs.get_layer("pool1_pool").output, theirs.get_layer("conv2_block2_out").output
        ),
    )
