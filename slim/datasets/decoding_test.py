"""Laws of decoding: a window is a part of the whole image, in every format."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from slim.datasets import decoding


def _scene(height, width, channels=3):
    """A smooth image: JPEG keeps it within a few grey levels."""
    rows, columns = np.mgrid[:height, :width] / 16
    planes = [128 + 60 * np.sin(rows + k) + 60 * np.cos(columns * (k + 1) / 2) for k in range(3)]
    return np.stack(planes, axis=-1).astype(np.uint8)[..., :channels]


def _encoded(image, image_format):
    content = {
        "RAW": lambda: image.tobytes(),
        "png": lambda: tf.io.encode_png(image).numpy(),
        "jpeg": lambda: tf.io.encode_jpeg(image, quality=95).numpy(),
    }[image_format]()
    sides = (tf.constant(side, tf.int64) for side in image.shape[:2])
    return decoding.EncodedImage(tf.constant(content), tf.constant(image_format), *sides)


@settings(max_examples=20)
@given(st.sampled_from(["RAW", "png", "jpeg"]), st.sampled_from([1, 3]), st.data())
def test_a_window_is_that_part_of_the_whole_image(image_format, channels, data):
    height, width = data.draw(st.tuples(st.integers(1, 70), st.integers(1, 70)))
    top, left = data.draw(st.tuples(st.integers(0, height - 1), st.integers(0, width - 1)))
    extent = data.draw(st.tuples(st.integers(1, height - top), st.integers(1, width - left)))
    image = _encoded(_scene(height, width, channels), image_format)
    window = lambda shape: tf.stack([top, left, *extent])
    found = decoding.decode_window(image, window, channels, "INTEGER_FAST").numpy()
    whole = decoding.decode_image(image, channels).numpy()
    expected = whole[top : top + extent[0], left : left + extent[1]]
    assert found.dtype == np.uint8 and found.shape == expected.shape
    np.testing.assert_array_equal(found[:, 1:-1], expected[:, 1:-1])
    edges = (0, -1)
    np.testing.assert_allclose(found[:, edges].astype(int), expected[:, edges], atol=12)


@pytest.mark.parametrize("image_format", ["RAW", "png", "jpeg"])
def test_the_window_is_chosen_by_the_shape_of_the_image(image_format):
    image = _encoded(_scene(30, 50), image_format)
    window = lambda shape: tf.concat([shape // 2, [shape[0] // 3, shape[1] // 5]], axis=0)
    assert decoding.decode_window(image, window, 3, "INTEGER_ACCURATE").shape == (10, 10, 3)


@pytest.mark.parametrize("image_format", ["png", "jpeg"])
def test_grey_becomes_colour_when_asked(image_format):
    grey = np.full((20, 20, 1), 77, np.uint8)
    window = lambda shape: tf.constant([4, 4, 8, 8])
    found = decoding.decode_window(_encoded(grey, image_format), window, 3, "INTEGER_ACCURATE")
    np.testing.assert_array_equal(found, np.full((8, 8, 3), 77))


def test_raw_pixels_that_begin_as_a_jpeg_does_are_pixels():
    pixels = np.full((2, 2, 3), 255, np.uint8)
    pixels[0, 0] = 0xFF, 0xD8, 0xFF
    window = lambda shape: tf.constant([0, 0, 1, 2])
    found = decoding.decode_window(_encoded(pixels, "RAW"), window, 3, "INTEGER_FAST")
    np.testing.assert_array_equal(found, pixels[:1])


def test_the_accurate_transform_is_nearer_to_the_original():
    image = np.random.default_rng(0).integers(0, 256, (64, 64, 1), np.uint8)
    encoded = _encoded(image, "jpeg")._replace(encoded=tf.io.encode_jpeg(image, quality=100))
    window = lambda shape: tf.constant([0, 0, 64, 64])
    accurate, fast = (
        np.abs(decoding.decode_window(encoded, window, 1, method).numpy() - image.astype(int))
        for method in ("INTEGER_ACCURATE", "INTEGER_FAST")
    )
    assert accurate.mean() < 1 < fast.mean()
