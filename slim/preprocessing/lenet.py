"""Preprocessing of the LeNet family: no augmentation."""

from __future__ import annotations

import tensorflow as tf


def preprocess(image: tf.Tensor, size: int, seed: tf.Tensor) -> tf.Tensor:
    """Crops or pads the centre to [size, size, C] and scales pixels to [-1, 1)."""
    del seed
    image = tf.image.resize_with_crop_or_pad(image, size, size)
    return (tf.cast(image, tf.float32) - 128.0) / 128.0
