"""Laws of VGG's preprocessing: the published ranges, and nearly the published pixels."""

import numpy as np
import pytest
import tensorflow as tf

from slim.preprocessing import vgg
from slim.preprocessing.preprocessing_factory import get_preprocessing

_DRAWS = 400
_MEANS = (123.68, 116.78, 103.94)


def _seed(value):
    return tf.constant([1, value], tf.int64)


def _windows(shape, size, window=vgg.training_window):
    draw = tf.function(
        lambda value: window(
            tf.constant(shape), tf.zeros([0, 4]), size, tf.stack([tf.constant(1, tf.int64), value])
        )
    )
    return np.array([draw(tf.constant(value, tf.int64)) for value in range(_DRAWS)])


def _scene(height, width):
    """A smooth image, so that half a pixel changes it little."""
    rows, columns = np.mgrid[:height, :width] * (12 / height)
    planes = [128 + 60 * np.sin(rows + k) + 60 * np.cos(columns * (k + 1) / 2) for k in range(3)]
    return np.stack(planes, axis=-1).astype(np.uint8)


@pytest.mark.parametrize("size", [224, 64, 299])
def test_squares_stand_for_shorter_sides_of_256_to_512_at_every_size(size):
    height, width = 768, 1024
    top, left, heights, widths = _windows((height, width), size).T
    np.testing.assert_array_equal(heights, widths)
    sides = 224 * height / heights  # as if 224 x 224 pixels were cut out
    assert 255.5 < sides.min() < 262 and 505 < sides.max() < 514
    assert abs(sides.mean() - 384) < 15
    _check_places(top, height - heights)
    _check_places(left, width - widths)


def _check_places(offsets, room):
    """Fails unless windows lie everywhere in the image."""
    assert np.all((offsets >= 0) & (offsets <= room))
    assert abs(np.mean(offsets / room) - 0.5) < 0.05
    assert np.min(offsets / room) < 0.03 and np.max(offsets / room) > 0.97


@pytest.mark.parametrize("size", [224, 64])
def test_windows_of_alexnet_have_the_shape_of_the_image(size):
    top, left, heights, widths = _windows((768, 1024), size, vgg.alexnet_training_window).T
    assert set(heights) == {768 * 224 // 256} and set(widths) == {1024 * 224 // 256}
    _check_places(top, 768 - heights)
    _check_places(left, 1024 - widths)


def test_half_of_the_images_are_flipped():
    crop = np.zeros((40, 40, 3), np.uint8)
    crop[:, 20:] = 255
    finish = tf.function(lambda seed: vgg.finish_for_training(crop, 32, seed))
    images = [finish(_seed(value)).numpy() for value in range(_DRAWS)]
    flipped = sum(image[:, :8].mean() > image[:, -8:].mean() for image in images)
    assert 0.4 * _DRAWS < flipped < 0.6 * _DRAWS


def test_the_mean_colour_is_subtracted():
    colour = np.full((30, 40, 3), (200, 100, 50), np.uint8)
    for is_training in (False, True):
        found = get_preprocessing("vgg", is_training).apply(tf.constant(colour), 16, _seed(0))
        np.testing.assert_allclose(found[5, 5], np.subtract((200, 100, 50), _MEANS), atol=1e-4)


def _resized(image, side):
    height, width = image.shape[:2]
    scale = side / min(height, width)
    return tf.image.resize(image, [round(height * scale), round(width * scale)]).numpy()


def test_training_sees_what_cutting_out_after_resizing_sees():
    image = _scene(480, 640)
    preprocessing = get_preprocessing("vgg", True)
    for value in range(10):
        top, left, extent, _ = vgg.training_window(
            tf.constant([480, 640]), tf.zeros([0, 4]), 224, _seed(value)
        ).numpy()
        scale = 224 / extent
        whole = _resized(image, round(480 * scale))
        row, column = (
            min(round(n * scale), limit - 224)
            for n, limit in ((top, whole.shape[0]), (left, whole.shape[1]))
        )
        expected = whole[row : row + 224, column : column + 224] - _MEANS
        found = preprocessing.apply(tf.constant(image), 224, _seed(value)).numpy()
        errors = min((np.abs(found - e) for e in (expected, expected[:, ::-1])), key=np.mean)
        # In grey levels; the window is up to a pixel off in both directions.
        assert errors.mean() < 2 and errors.max() < 8


@pytest.mark.parametrize(
    ("name", "resized"),
    [
        ("vgg", lambda image: _resized(image, 256)),
        ("alexnet", lambda image: tf.image.resize(image, [256, 256]).numpy()),
    ],
)
@pytest.mark.parametrize("shape", [(375, 500), (500, 333), (256, 256)])
def test_evaluation_is_the_centre_of_the_image_with_sides_of_256(shape, name, resized):
    image = _scene(*shape)
    found = get_preprocessing(name, False).apply(tf.constant(image), 224, _seed(0)).numpy()
    whole = resized(image)
    row, column = ((side - 224) // 2 for side in whole.shape[:2])
    expected = whole[row : row + 224, column : column + 224] - _MEANS
    assert np.abs(found - expected).max() < 4


def test_evaluation_of_the_published_size_is_exact():
    image = np.random.default_rng(0).integers(0, 256, (256, 300, 3), np.uint8)
    found = get_preprocessing("vgg", False).apply(tf.constant(image), 224, _seed(0))
    np.testing.assert_allclose(found, image[16:240, 38:262] - np.float32(_MEANS), atol=1e-4)
