"""Preprocessing of VGG, OverFeat, ResNet and AlexNet: random sizes and places, mean subtraction.

Simonyan, Zisserman: Very Deep Convolutional Networks for Large-Scale Image Recognition, ICLR 2015,
with the constants that TF-Slim trains with: the shorter side becomes 256 to 512 pixels long, and
224 x 224 pixels are cut out. The same piece of the stored image is cut out first and resized once
here, so its sides are rounded to whole pixels of the stored image.

AlexNet's, with the constants of TernGrad's code, differs in the size: height and width both become
256 pixels long, whatever they were.

For other sizes of the net's input the sides grow or shrink with it. The net then sees the same
piece of the image, at another resolution.
"""

from __future__ import annotations

import tensorflow as tf

from slim.preprocessing.resizing import flip, resize

_MEANS = (123.68, 116.78, 103.94)  # of ImageNet's pixels: red, green, blue
CROP = 224
SHORTER_SIDE = (256, 512)  # when CROP x CROP are cut out; evaluation takes the first


def training_window(shape: tf.Tensor, boxes: tf.Tensor, size: int, seed: tf.Tensor) -> tf.Tensor:
    """Draws the shorter side and the place of a square; see `Preprocessing`."""
    del boxes, size
    side, row, column = tf.unstack(tf.random.stateless_uniform([3], seed))
    low, high = SHORTER_SIDE
    extent = _extent(_square(shape), low + tf.floor(side * (high - low + 1)))
    return _placed(shape, extent, row, column)


def alexnet_training_window(
    shape: tf.Tensor, boxes: tf.Tensor, size: int, seed: tf.Tensor
) -> tf.Tensor:
    """Draws the place of a window with the shape of the image; see `Preprocessing`."""
    del boxes, size
    row, column = tf.unstack(tf.random.stateless_uniform([2], seed))
    return _placed(shape, _extent(shape), row, column)


def finish_for_training(crop: tf.Tensor, size: int, seed: tf.Tensor) -> tf.Tensor:
    """Flips and resizes uint8 [h, w, C] to float32 [size, size, C], less the mean colour."""
    # The window was drawn from the seed itself.
    return _subtract_means(
        resize(flip(crop, tf.random.stateless_uniform([], tf.random.fold_in(seed, 1))), size)
    )


def evaluation_window(shape: tf.Tensor, boxes: tf.Tensor, size: int, seed: tf.Tensor) -> tf.Tensor:
    """Returns the central square."""
    del boxes, size, seed
    return _central(shape, _extent(_square(shape)))


def alexnet_evaluation_window(
    shape: tf.Tensor, boxes: tf.Tensor, size: int, seed: tf.Tensor
) -> tf.Tensor:
    """Returns the central window with the shape of the image."""
    del boxes, size, seed
    return _central(shape, _extent(shape))


def finish_for_evaluation(crop: tf.Tensor, size: int, seed: tf.Tensor) -> tf.Tensor:
    """Resizes uint8 [h, w, C] to float32 [size, size, C], less the mean colour."""
    del seed
    return _subtract_means(resize(crop, size))


def _square(shape: tf.Tensor) -> tf.Tensor:
    return tf.repeat(tf.reduce_min(shape), 2)


def _extent(sides: tf.Tensor, resized: tf.Tensor | float = SHORTER_SIDE[0]) -> tf.Tensor:
    """Height and width, int32 [2], of CROP x CROP pixels before `sides` are resized."""
    extent = CROP / resized * tf.cast(sides, tf.float32)
    return tf.maximum(tf.cast(tf.round(extent), tf.int32), 1)


def _placed(shape: tf.Tensor, extent: tf.Tensor, row: tf.Tensor, column: tf.Tensor) -> tf.Tensor:
    """Returns a window at a place given by two draws from [0, 1)."""
    room = tf.cast(shape - extent + 1, tf.float32)
    return tf.concat([tf.cast(tf.stack([row, column]) * room, tf.int32), extent], axis=0)


def _central(shape: tf.Tensor, extent: tf.Tensor) -> tf.Tensor:
    return tf.concat([(shape - extent) // 2, extent], axis=0)


def means(channels: int) -> tuple[float, ...]:
    """Returns what is subtracted from the pixels of each channel."""
    return (sum(_MEANS) / len(_MEANS),) if channels == 1 else _MEANS


def _subtract_means(image: tf.Tensor) -> tf.Tensor:
    _, size, channels = image.shape
    # A whole row, because adding three values to each of many pixels takes as long as decoding.
    return image - tf.constant(means(channels) * size, shape=[size, channels])
