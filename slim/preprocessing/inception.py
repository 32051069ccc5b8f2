"""Preprocessing of the Inception nets: distorted bounding boxes and colours.

Szegedy et al.: Going Deeper with Convolutions, CVPR 2015, with the constants that TF-Slim trains
with. Of its colour distortions these are the fast ones, its default: brightness and saturation,
here in either order. Its other ones, hue and contrast, would halve the speed.
"""

from __future__ import annotations

import tensorflow as tf

from slim.preprocessing.resizing import flip, resize

_OBJECT_COVERED = 0.1  # of a bounding box, at least
_ASPECT = (0.75, 1.33)  # width / height of the window
_AREA = (0.05, 1.0)  # of the window, as a share of the image
_ATTEMPTS = 100  # to find such a window; then the window is the whole image
_MAX_BRIGHTNESS = 32.0  # on the scale of pixels
_SATURATION = (0.5, 1.5)


def training_window(shape: tf.Tensor, boxes: tf.Tensor, size: int, seed: tf.Tensor) -> tf.Tensor:
    """Draws a window that covers a part of one of the boxes; see `Preprocessing`.

    Without boxes the whole image is the box.
    """
    del size
    begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
        tf.concat([shape, [3]], axis=0),
        boxes[tf.newaxis],
        seed,
        min_object_covered=_OBJECT_COVERED,
        aspect_ratio_range=_ASPECT,
        area_range=_AREA,
        max_attempts=_ATTEMPTS,
        use_image_if_no_bounding_boxes=True,
    )
    return tf.concat([begin[:2], extent[:2]], axis=0)


def finish_for_training(crop: tf.Tensor, size: int, seed: tf.Tensor) -> tf.Tensor:
    """Flips, resizes and distorts the colours of uint8 [h, w, C].

    Returns:
      float32 [size, size, C] in [-1, 1].
    """
    # The window was drawn from the seed itself.
    draws = tf.random.stateless_uniform([4], tf.random.fold_in(seed, 1))
    flipped, order, brightness, saturation = tf.unstack(draws)
    image = resize(flip(crop, flipped), size)
    added = (2.0 * brightness - 1.0) * _MAX_BRIGHTNESS
    added_first = tf.where(order < 0.5, added, 0.0)
    image += added_first
    if image.shape[-1] == 3:  # grey has no saturation
        low, high = _SATURATION
        image = tf.image.adjust_saturation(image, low + (high - low) * saturation)
    return _scale(tf.clip_by_value(image + (added - added_first), 0.0, 255.0))


def evaluation_window(shape: tf.Tensor, boxes: tf.Tensor, size: int, seed: tf.Tensor) -> tf.Tensor:
    """Returns the central 0.875 of height and width."""
    del boxes, size, seed
    margin = shape // 16
    return tf.concat([margin, shape - 2 * margin], axis=0)


def finish_for_evaluation(crop: tf.Tensor, size: int, seed: tf.Tensor) -> tf.Tensor:
    """Resizes uint8 [h, w, C] to float32 [size, size, C] in [-1, 1]."""
    del seed
    return _scale(resize(crop, size))


def _scale(pixels: tf.Tensor) -> tf.Tensor:
    return pixels * (1.0 / 127.5) - 1.0
