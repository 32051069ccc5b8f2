"""Preprocessing of the Inception nets: distorted bounding boxes and colours.

Szegedy et al.: Going Deeper with Convolutions, CVPR 2015, with the constants that TF-Slim trains
with. As TF-Slim by default, it distorts brightness and saturation, in either order, but neither hue
nor contrast. Saturation is the distance to the grey of the same luma, as in Howard (arXiv
1312.5402), on which that paper is based. TF-Slim uses that of HSV, which takes three times as long
and would be a third of the whole time of an image.
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
_LUMA = (0.299, 0.587, 0.114)  # ITU-R 601
MARGIN = 16  # evaluation leaves out one part in 16 of height and width on each side
SCALE = 1.0 / 127.5  # from [0, 255] to [0, 2]


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
    low, high = _SATURATION
    return _distort_colours(
        resize(flip(crop, flipped), size),
        brightness_first=order < 0.5,
        added=(2.0 * brightness - 1.0) * _MAX_BRIGHTNESS,
        saturation=low + (high - low) * saturation,
    )


def _distort_colours(
    pixels: tf.Tensor, brightness_first: tf.Tensor, added: tf.Tensor, saturation: tf.Tensor
) -> tf.Tensor:
    """Scales pixels to [-1, 1] and changes brightness and saturation, clipping after each."""
    image = _scale(pixels)
    brighten = lambda image: _clip(image + added * SCALE)
    if image.shape[-1] == 1:  # grey has no saturation
        return brighten(image)
    grey = tf.constant(_LUMA, shape=[3, 1])  # the same for each of the new channels
    mixed = saturation * tf.eye(3) + (1.0 - saturation) * grey
    saturate = lambda image: _clip(
        tf.reshape(tf.matmul(tf.reshape(image, [-1, 3]), mixed), image.shape)
    )
    return tf.cond(
        brightness_first, lambda: saturate(brighten(image)), lambda: brighten(saturate(image))
    )


def _clip(image: tf.Tensor) -> tf.Tensor:
    """Clips to [-1, 1] in one pass; tf.clip_by_value makes two."""
    return tf.raw_ops.ClipByValue(t=image, clip_value_min=-1.0, clip_value_max=1.0)


def evaluation_window(shape: tf.Tensor, boxes: tf.Tensor, size: int, seed: tf.Tensor) -> tf.Tensor:
    """Returns the central 0.875 of height and width."""
    del boxes, size, seed
    margin = shape // MARGIN
    return tf.concat([margin, shape - 2 * margin], axis=0)


def finish_for_evaluation(crop: tf.Tensor, size: int, seed: tf.Tensor) -> tf.Tensor:
    """Resizes uint8 [h, w, C] to float32 [size, size, C] in [-1, 1]."""
    del seed
    return _scale(resize(crop, size))


def _scale(pixels: tf.Tensor) -> tf.Tensor:
    return pixels * SCALE - 1.0
