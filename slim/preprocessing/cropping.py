"""Preprocessing of small images, which are cropped and never resized: unit, lenet and cifarnet."""

from __future__ import annotations

import tensorflow as tf

# Of cifarnet.
_PADDING = 4  # pixels on each side, unless the crop is smaller than the image
_MAX_BRIGHTNESS = 63.0  # on the scale of pixels
_CONTRAST = (0.2, 1.8)


def unit(image: tf.Tensor, size: int, seed: tf.Tensor) -> tf.Tensor:
    """For the sigmoid net: crops or pads the centre to [size, size, C], pixels in [0, 1]."""
    del seed
    image = tf.image.resize_with_crop_or_pad(image, size, size)
    return tf.cast(image, tf.float32) / 255.0


def lenet(image: tf.Tensor, size: int, seed: tf.Tensor) -> tf.Tensor:
    """For the LeNets: crops or pads the centre to [size, size, C], pixels in [-1, 1)."""
    del seed
    image = tf.image.resize_with_crop_or_pad(image, size, size)
    return (tf.cast(image, tf.float32) - 128.0) / 128.0


def cifarnet_for_training(image: tf.Tensor, size: int, seed: tf.Tensor) -> tf.Tensor:
    """Applies a random crop, flip, brightness and contrast, then standardizes.

    This is Krizhevsky's recipe of 2012, for CifarNet and for the AlexNet of CIFAR-10.

    Args:
      image: uint8 [H, W, C].
      size: side of the crop in pixels.
      seed: int64 [2], the only seed of the five draws.

    Returns:
      float32 [size, size, C] with mean 0 and variance 1.
    """
    row, column, flip, brightness, contrast = tf.unstack(tf.random.stateless_uniform([5], seed))
    image = _crop(_pad(image, size), size, row, column)
    image = tf.where(flip < 0.5, tf.reverse(image, [1]), image)
    image = tf.cast(image, tf.float32) + (2.0 * brightness - 1.0) * _MAX_BRIGHTNESS
    low, high = _CONTRAST
    image = tf.image.adjust_contrast(image, low + (high - low) * contrast)
    return tf.image.per_image_standardization(image)


def cifarnet_for_evaluation(image: tf.Tensor, size: int, seed: tf.Tensor) -> tf.Tensor:
    """Crops or pads the centre of uint8 [H, W, C] to float32 [size, size, C], standardized."""
    del seed
    return tf.image.per_image_standardization(tf.image.resize_with_crop_or_pad(image, size, size))


def _pad(image: tf.Tensor, size: int) -> tf.Tensor:
    """Pads with black, so that crops of `size` have several positions."""
    lack = tf.maximum(size - tf.shape(image)[:2], -1)
    padding = tf.where(lack >= 0, (lack + 1) // 2 + _PADDING, 0)
    return tf.pad(image, [[padding[0], padding[0]], [padding[1], padding[1]], [0, 0]])


def _crop(image: tf.Tensor, size: int, row: tf.Tensor, column: tf.Tensor) -> tf.Tensor:
    """Crops [size, size] at a position given by two draws from [0, 1)."""
    room = tf.cast(tf.shape(image)[:2] - size + 1, tf.float32)
    offset = tf.cast(tf.stack([row, column]) * room, tf.int32)
    crop = tf.slice(image, tf.concat([offset, [0]], axis=0), [size, size, -1])
    return tf.ensure_shape(crop, [size, size, image.shape[-1]])
