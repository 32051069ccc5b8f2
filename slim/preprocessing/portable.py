"""The evaluation's preprocessing in operations of Keras, so that an exported net contains it.

Images of any size are cropped and resized by one matrix product for each axis: row i of the matrix
has the weights of all pixels in pixel i of the result. Keras alone can load such a net, without a
layer of ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import keras
import numpy as np
from keras import ops

from slim.preprocessing import inception, vgg

_Tensor = keras.KerasTensor


def with_preprocessing(model: keras.Model, name: str) -> keras.Model:
    """Returns a model from pixels, uint8 [B, H, W, C] of any H and W, to the outputs of `model`.

    Args:
      model: takes preprocessed images, float32 [B, size, size, C].
      name: of the preprocessing, see `preprocessing_factory`.
    """
    _, size, _, channels = model.inputs[0].shape
    pixels = keras.Input((None, None, channels), dtype="uint8", name="pixels")
    window, finish = _STEPS[name]
    images = ops.cast(pixels, "float32")
    down, across = window(_count(images, 1), _count(images, 2), size)
    images = ops.einsum("bih,bhwc->biwc", _weights(down, _places(images, 1)), images)
    images = ops.einsum("bjw,biwc->bijc", _weights(across, _places(images, 2)), images)
    return keras.Model(pixels, model(finish(ops.reshape(images, (-1, size, size, channels)))))


def _places(images: _Tensor, axis: int) -> _Tensor:
    """Returns the index of each pixel along an axis, float32 [B, pixels]."""
    line = images[:, :, 0, 0] if axis == 1 else images[:, 0, :, 0]
    return ops.cumsum(ops.ones_like(line), axis=1) - 1.0


def _count(images: _Tensor, axis: int) -> _Tensor:
    """Returns the number of pixels along an axis, float32 [B, 1]."""
    return ops.max(_places(images, axis), axis=1, keepdims=True) + 1.0


def _weights(wanted: _Tensor, places: _Tensor) -> _Tensor:
    """Returns the bilinear weights [B, size, pixels] of all pixels at the wanted places [B, size].

    They are 0 for places more than a pixel outside.
    """
    distance = ops.abs(ops.expand_dims(wanted, 2) - ops.expand_dims(places, 1))
    return ops.relu(1.0 - distance)


def _resized_places(begin: _Tensor, extent: _Tensor, size: int) -> _Tensor:
    """Returns the places of the pixels that a part of an axis is resized to: [B, size]."""
    centres = np.arange(size, dtype=np.float32) + np.float32(0.5)
    wanted = begin + (extent / size) * centres[np.newaxis] - 0.5
    return ops.minimum(ops.maximum(wanted, begin), begin + extent - 1.0)


def _inception_window(height: _Tensor, width: _Tensor, size: int) -> tuple[_Tensor, _Tensor]:
    def along(count: _Tensor) -> _Tensor:
        margin = ops.floor(count / inception.MARGIN)
        return _resized_places(margin, count - 2.0 * margin, size)

    return along(height), along(width)


def _vgg_window(height: _Tensor, width: _Tensor, size: int) -> tuple[_Tensor, _Tensor]:
    shorter = ops.minimum(height, width)
    return _vgg_places(height, shorter, size), _vgg_places(width, shorter, size)


def _alexnet_window(height: _Tensor, width: _Tensor, size: int) -> tuple[_Tensor, _Tensor]:
    return _vgg_places(height, height, size), _vgg_places(width, width, size)


def _vgg_places(count: _Tensor, side: _Tensor, size: int) -> _Tensor:
    extent = ops.maximum(ops.round(vgg.CROP / vgg.SHORTER_SIDE[0] * side), 1.0)
    return _resized_places(ops.floor((count - extent) / 2.0), extent, size)


def _centre(height: _Tensor, width: _Tensor, size: int) -> tuple[_Tensor, _Tensor]:
    """Returns the places of the central pixels; those outside of the image become black."""

    def along(count: _Tensor) -> _Tensor:
        offset = ops.floor(ops.relu(count - size) / 2.0) - ops.floor(ops.relu(size - count) / 2.0)
        return offset + np.arange(size, dtype=np.float32)[np.newaxis]

    return along(height), along(width)


def _standardized(images: _Tensor) -> _Tensor:
    least = 1.0 / math.sqrt(math.prod(images.shape[1:]))  # as tf.image.per_image_standardization
    mean, variance = ops.moments(images, axes=(1, 2, 3), keepdims=True)
    return (images - mean) / ops.maximum(ops.sqrt(variance), least)


def _less_means(images: _Tensor) -> _Tensor:
    return images - np.float32(vgg.means(images.shape[-1]))


_STEPS: dict[str, tuple[Callable[..., tuple[_Tensor, _Tensor]], Callable[[_Tensor], _Tensor]]] = {
    "alexnet": (_alexnet_window, _less_means),
    "cifarnet": (_centre, _standardized),
    "inception": (_inception_window, lambda images: images * inception.SCALE - 1.0),
    "lenet": (_centre, lambda images: (images - 128.0) / 128.0),
    "unit": (_centre, lambda images: images / 255.0),
    "vgg": (_vgg_window, _less_means),
}
