"""Resizing and flipping: steps that the preprocessing of several families of nets shares."""

from __future__ import annotations

import tensorflow as tf


def resize(crop: tf.Tensor, size: int) -> tf.Tensor:
    """Resizes uint8 [h, w, C] to float32 [size, size, C], bilinearly, on the scale of pixels.

    Pixels have their centres half a pixel from their edges. TF-Slim's resizing of 2016 took their
    upper left corners instead, and so moved the image by up to half a pixel.
    """
    return tf.image.resize(crop, [size, size])


def flip(image: tf.Tensor, draw: tf.Tensor) -> tf.Tensor:
    """Exchanges left and right if the draw from [0, 1) is below 0.5."""
    return tf.cond(draw < 0.5, lambda: tf.reverse(image, [1]), lambda: image)
