"""Laws of preprocessing: shapes, scales, and draws that depend on the seed only."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from slim.nets import catalog
from slim.preprocessing import cropping
from slim.preprocessing.preprocessing_factory import get_preprocessing

_NAMES = catalog.PREPROCESSING
_DRAWING = ("alexnet", "cifarnet", "inception", "vgg")  # in training


def _image(height=32, width=32, channels=3):
    return np.random.default_rng(0).integers(0, 256, (height, width, channels), np.uint8)


def _seed(value):
    return tf.constant([1, value], tf.int64)


@pytest.mark.parametrize("is_training", [False, True])
@pytest.mark.parametrize("name", _NAMES)
@settings(max_examples=10)
@given(st.integers(9, 40), st.integers(9, 40), st.sampled_from([1, 3]), st.integers(8, 48))
def test_any_image_becomes_one_of_the_size_asked_for(
    name, is_training, height, width, channels, size
):
    preprocess = get_preprocessing(name, is_training).apply
    out = preprocess(_image(height, width, channels), size, _seed(0))
    assert out.dtype == tf.float32 and out.shape == (size, size, channels)
    assert np.all(np.isfinite(out))


@pytest.mark.parametrize("is_training", [False, True])
@pytest.mark.parametrize("name", _NAMES)
def test_output_is_a_function_of_image_and_seed(name, is_training):
    preprocess = get_preprocessing(name, is_training).apply
    first = preprocess(_image(), 24, _seed(0))
    tf.random.set_seed(7)
    np.testing.assert_array_equal(preprocess(_image(), 24, _seed(0)), first)
    changes = not np.array_equal(preprocess(_image(), 24, _seed(1)), first)
    assert changes == (name in _DRAWING and is_training)


def test_lenet_and_unit_scale_pixels():
    image = _image(28, 28, 1)
    pixels = image.astype(np.float32)
    lenet, unit = (get_preprocessing(name, True).finish for name in ("lenet", "unit"))
    np.testing.assert_array_equal(lenet(image, 28, _seed(0)), (pixels - 128) / 128)
    np.testing.assert_allclose(unit(image, 28, _seed(0)), pixels / 255, rtol=1e-6)


def test_cifarnet_standardizes_each_image():
    for is_training in (False, True):
        out = get_preprocessing("cifarnet", is_training).finish(_image(), 24, _seed(3)).numpy()
        np.testing.assert_allclose([out.mean(), out.std()], [0, 1], atol=1e-5)


def test_cifarnet_evaluates_the_centre():
    out = get_preprocessing("cifarnet", False).finish(_image(), 24, _seed(0))
    centre = tf.image.per_image_standardization(_image()[4:28, 4:28])
    np.testing.assert_array_equal(out, centre)


@pytest.mark.parametrize("size", [24, 32])
def test_cifarnet_crops_at_each_of_9_places_in_both_directions(size):
    padded = cropping._pad(_image(), size)
    for place in range(9):
        for draw in (place / 9 + 1e-6, (place + 1) / 9 - 1e-6):
            for row, column in ((draw, 0.0), (0.0, draw)):
                crop = cropping._crop(padded, size, tf.constant(row), tf.constant(column))
                top, left = (place if draw else 0 for draw in (row, column))
                np.testing.assert_array_equal(crop, padded[top : top + size, left : left + size])


def test_cifarnet_flips_half_of_the_images():
    image = np.zeros((32, 32, 3), np.uint8)
    image[:, 16:] = 255
    preprocess = tf.function(get_preprocessing("cifarnet", True).finish)
    outputs = [preprocess(image, 32, _seed(value)).numpy() for value in range(400)]
    flipped = sum(out[8, 10].mean() > out[8, 21].mean() for out in outputs)
    assert 160 < flipped < 240


def test_cifarnet_draws_contrast_from_0_2_to_1_8():
    """Contrast stretches each channel about its mean; standardization keeps ratios."""
    image = np.zeros((24, 24, 3), np.uint8)
    image[:, ::2, 0] = 100  # mean 50
    image[..., 1:] = 200
    preprocess = tf.function(get_preprocessing("cifarnet", True).finish)
    factors = []
    for value in range(400):
        red, green, _ = np.moveaxis(preprocess(image, 16, _seed(value)).numpy(), -1, 0)
        factors.append(np.ptp(red) / 100 * 150 / (green.mean() - red.mean()))
    assert 0.2 - 1e-4 <= min(factors) < 0.25 and 1.75 < max(factors) <= 1.8 + 1e-4


def test_unknown_preprocessing_says_what_is_allowed():
    with pytest.raises(ValueError, match="unknown preprocessing 'alex'; allowed: alexnet, cifar"):
        get_preprocessing("alex", True)
