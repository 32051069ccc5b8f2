"""Laws of the Inception nets' preprocessing: the published ranges, and evaluation's formula."""

import numpy as np
import pytest
import tensorflow as tf

from slim.preprocessing import inception
from slim.preprocessing.preprocessing_factory import get_preprocessing

_DRAWS = 400


def _seed(value):
    return tf.constant([1, value], tf.int64)


def _windows(shape, boxes):
    boxes = tf.constant(boxes, tf.float32, [len(boxes), 4])
    draw = tf.function(
        lambda value: inception.training_window(
            tf.constant(shape), boxes, 224, tf.stack([tf.constant(1, tf.int64), value])
        )
    )
    return np.array([draw(tf.constant(value, tf.int64)) for value in range(_DRAWS)])


def _finish(crop, size, seeds=range(_DRAWS)):
    finish = tf.function(
        lambda value: inception.finish_for_training(
            crop, size, tf.stack([tf.constant(1, tf.int64), value])
        )
    )
    return [finish(tf.constant(value, tf.int64)).numpy() for value in seeds]


def test_windows_fill_the_published_ranges_of_area_and_aspect():
    height, width = 300, 400
    top, left, heights, widths = _windows((height, width), []).T
    assert np.all(top >= 0) and np.all(top + heights <= height)
    assert np.all(left >= 0) and np.all(left + widths <= width)
    areas, aspects = heights * widths / (height * width), widths / heights
    # Without boxes the whole image is the box of which a tenth must be covered.
    assert 0.099 < areas.min() < 0.12 and 0.9 < areas.max() <= 1
    # Rounding to whole pixels moves some aspects a little out of the range.
    assert 0.74 < aspects.min() < 0.78 and 1.28 < aspects.max() < 1.35
    # Places are spread over all the room there is.
    for offsets, room in ((top, height - heights), (left, width - widths)):
        assert abs(np.mean(offsets[room > 20] / room[room > 20]) - 0.5) < 0.06


def test_every_window_covers_a_tenth_of_a_box():
    box = (0.6, 0.7, 0.9, 0.95)
    top, left, heights, widths = _windows((200, 200), [box]).T
    low, high = 200 * np.array(box[:2]), 200 * np.array(box[2:])
    areas = heights * widths / 200**2
    assert 0.049 < areas.min() < 0.07 and 0.8 < areas.max() <= 1
    covered_rows = np.minimum(top + heights, high[0]) - np.maximum(top, low[0])
    covered_columns = np.minimum(left + widths, high[1]) - np.maximum(left, low[1])
    covered = np.maximum(covered_rows, 0) * np.maximum(covered_columns, 0)
    assert covered.min() >= 0.1 * np.prod(high - low) - 25  # boxes are rounded to whole pixels
    without_box = np.array(_windows((200, 200), []))
    assert np.mean(without_box[:, 0]) < np.mean(top)


def test_half_of_the_images_are_flipped():
    crop = np.zeros((40, 40, 3), np.uint8)
    crop[:, 20:] = 255
    flipped = sum(image[:, :8].mean() > image[:, -8:].mean() for image in _finish(crop, 32))
    assert 0.4 * _DRAWS < flipped < 0.6 * _DRAWS


def test_brightness_moves_by_at_most_32_grey_levels_and_grey_stays_grey():
    images = _finish(np.full((20, 20, 3), 128, np.uint8), 16)
    shifts = np.array([(image[0, 0, 0] + 1) * 127.5 - 128 for image in images])
    assert -32.01 < shifts.min() < -28 and 28 < shifts.max() < 32.01
    assert abs(shifts.mean()) < 3
    assert all(np.ptp(image) < 1e-5 for image in images)


def test_saturation_is_scaled_by_0_5_to_1_5():
    images = _finish(np.full((20, 20, 3), (120, 100, 80), np.uint8), 16)
    red, _, blue = np.moveaxis([(image[0, 0] + 1) * 127.5 for image in images], -1, 0)
    factors = (red - blue) / (120 - 80)
    assert 0.499 < factors.min() < 0.53 and 1.47 < factors.max() < 1.501
    assert abs(factors.mean() - 1) < 0.05


def test_half_of_the_images_get_their_brightness_before_their_saturation():
    """A grey row tells what was added, a pale one the factor, and a strong one their order."""
    rows = np.array([(128, 128, 128), (120, 100, 80), (250, 30, 10)], np.uint8)
    brightness_first = []
    for image in _finish(np.repeat(rows[:, np.newaxis], 3, axis=1), 3):
        (added, *_), pale, strong = (image[:, 1] + 1) * 127.5
        added, factor = added - 128, (pale[0] - pale[2]) / 40
        expected = []
        for order in ("brightness, saturation", "saturation, brightness"):
            pixel = rows[2].astype(np.float64)
            for step in order.split(", "):
                grey = pixel @ (0.299, 0.587, 0.114)
                changed = {
                    "brightness": pixel + added,
                    "saturation": factor * pixel + (1 - factor) * grey,
                }
                pixel = np.clip(changed[step], 0, 255)
            expected.append(pixel)
        fits = [np.allclose(strong, pixel, atol=0.05) for pixel in expected]
        assert any(fits)
        if not all(fits):
            brightness_first.append(fits[0])
    assert len(brightness_first) > _DRAWS / 2
    assert 0.4 < np.mean(brightness_first) < 0.6


@pytest.mark.parametrize("channels", [1, 3])
def test_values_lie_in_minus_1_to_1(channels):
    noise = np.random.default_rng(0).integers(0, 256, (30, 50, channels), np.uint8)
    images = np.array(_finish(noise, 24, range(20)))
    assert images.shape == (20, 24, 24, channels)
    assert -1 <= images.min() < -0.8 and 0.8 < images.max() <= 1


@pytest.mark.parametrize("shape", [(375, 500), (64, 33), (7, 5)])
@pytest.mark.parametrize("size", [224, 32])
def test_evaluation_is_the_central_0_875_resized_and_scaled(shape, size):
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    found = get_preprocessing("inception", False).apply(tf.constant(image), size, _seed(0))
    central = tf.image.central_crop(tf.image.convert_image_dtype(image, tf.float32), 0.875)
    expected = (tf.image.resize(central, [size, size]) - 0.5) * 2
    np.testing.assert_allclose(found, expected, atol=1e-5)
