"""Nets that keras.applications has too have its parameters, and its outputs with its weights."""

import keras
import numpy as np
import pytest

from slim.nets import nets_factory
from slim.weights import keras_files

pytestmark = pytest.mark.slow

CLASSES = 7
RED_FIRST, BLUE_FIRST = slice(None), slice(None, None, -1)  # of the images of Keras' net


@pytest.fixture
def twins(tmp_path):
    """Returns our net and Keras', with the weights of a file that Keras' has written."""

    def make(net, published, size):
        theirs = published(
            weights=None, input_shape=(size, size, 3), classes=CLASSES, classifier_activation=None
        )
        rng = np.random.default_rng(0)
        for v in theirs.variables:
            if not v.path.endswith("kernel"):
                v.assign(rng.uniform(0.5, 1.0, size=v.shape))
        path = str(tmp_path / "theirs.weights.h5")
        theirs.save_weights(path)
        ours = nets_factory.build_net(net, num_classes=CLASSES, image_size=size, for_training=False)
        assert [output.shape for output in ours.outputs] == [(None, CLASSES)]  # no auxiliary heads
        variables = nets_factory.named_variables(ours)
        found = keras_files.read(path, net, {name: tuple(v.shape) for name, v in variables.items()})
        assert (found.arrays.keys(), found.left_out) == (variables.keys(), ())
        for name, v in variables.items():
            v.assign(found.arrays[name])
        return ours, theirs

    return make


def _images(model: keras.Model) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(2, *model.inputs[0].shape[1:])).astype(np.float32)


def _assert_equal_outputs(ours: keras.Model, theirs: keras.Model, colours=RED_FIRST) -> None:
    images = _images(theirs)
    expected = np.asarray(theirs(images[..., colours]))
    np.testing.assert_allclose(ours(images), expected, atol=1e-4 * np.abs(expected).max())


def _correlation(ours: np.ndarray, theirs: np.ndarray) -> float:
    return np.corrcoef(np.ravel(ours), np.ravel(theirs))[0, 1]


@pytest.mark.parametrize(
    ("net", "published", "size", "colours"),
    [
        ("inception_v3", keras.applications.InceptionV3, 139, RED_FIRST),
        pytest.param(
            *("inception_resnet_v2", keras.applications.InceptionResNetV2, 139, RED_FIRST),
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            *("vgg_16", keras.applications.VGG16, 224, BLUE_FIRST), marks=pytest.mark.exhaustive
        ),
    ],
)
def test_parameters_and_outputs_equal_keras(twins, net, published, size, colours):
    ours, theirs = twins(net, published, size)
    assert ours.count_params() == theirs.count_params()
    _assert_equal_outputs(ours, theirs, colours)


def test_resnet_v2_equals_keras_after_the_first_pooling(twins):
    """Keras pads the first pooling with zeros, and on both sides; TF-Slim uses SAME padding."""
    ours, theirs = twins("resnet_v2_50", keras.applications.ResNet50V2, 139)
    assert ours.count_params() == theirs.count_params()
    _assert_equal_outputs(
        keras.Model(ours.get_layer("resnet_v2_50.pool1").output, ours.output),
        keras.Model(theirs.get_layer("pool1_pool").output, theirs.output),
    )
    images = _images(theirs)
    assert _correlation(ours(images), theirs(images)) > 0.999


def test_resnet_v1_differs_from_keras_only_in_strides_biases_and_order_of_colours(twins):
    """Keras strides in the first 1x1 convolution of a block, TF-Slim in the last 3x3 one.

    Its convolutions also have biases, which normalization cancels, and blue is its first colour. Up
    to the first stride the outputs are equal.
    """
    ours, theirs = twins("resnet_v1_50", keras.applications.ResNet50, 139)
    convs = [x for x in ours.layers if isinstance(x, keras.layers.Conv2D) and not x.use_bias]
    assert theirs.count_params() - ours.count_params() == sum(x.filters for x in convs) == 26_560
    last = ours.get_layer("resnet_v1_50.block1.unit_2.bottleneck_v1.relu").output
    _assert_equal_outputs(
        keras.Model(ours.get_layer("resnet_v1_50.pool1").output, last),
        keras.Model(
            theirs.get_layer("pool1_pool").output, theirs.get_layer("conv2_block2_out").output
        ),
    )
    images = _images(theirs)
    assert _correlation(ours(images), theirs(images[..., BLUE_FIRST])) > 0.999
