"""An exported net's own preprocessing computes what the evaluation's does, also after loading."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from slim.nets import catalog
from slim.preprocessing import portable
from slim.preprocessing.preprocessing_factory import get_preprocessing

_SIZES = [(40, 61), (61, 40), (24, 24), (23, 31), (9, 17), (130, 97)]
_SIDE = 24


def _identity(channels):
    images = keras.Input((_SIDE, _SIDE, channels))
    return keras.Model(images, keras.layers.Identity()(images))


def _pixels(size, channels):
    return np.random.default_rng(0).integers(0, 256, (2, *size, channels), np.uint8)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", catalog.PREPROCESSING)
def test_every_preprocessing_is_that_of_evaluation(name, channels):
    model = portable.with_preprocessing(_identity(channels), name)
    apply = get_preprocessing(name, is_training=False).apply
    for size in _SIZES:
        pixels = _pixels(size, channels)
        expected = [apply(tf.constant(image), _SIDE, tf.zeros([2], tf.int64)) for image in pixels]
        scale = np.ptp(expected)
        np.testing.assert_allclose(model(pixels), expected, atol=1e-5 * scale, err_msg=f"{size}")


@pytest.mark.parametrize("name", catalog.PREPROCESSING)
def test_keras_loads_every_preprocessing_without_objects_of_the_suite(tmp_path, name):
    model = portable.with_preprocessing(_identity(3), name)
    model.save(tmp_path / "net.keras")
    loaded = keras.models.load_model(tmp_path / "net.keras", custom_objects={}, safe_mode=True)
    pixels = _pixels(_SIZES[0], 3)
    np.testing.assert_array_equal(loaded(pixels), model(pixels))
