"""Decodes stored images, whole or only a window of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf


class EncodedImage(NamedTuple):
    """Encoded images: tensors of shape [] for an image, or [B] for a batch."""

    encoded: tf.Tensor  # string
    format: tf.Tensor  # string
    height: tf.Tensor  # int64, read for RAW only
    width: tf.Tensor  # int64, read for RAW only


def decode_image(image: EncodedImage, channels: int = 0) -> tf.Tensor:
    """Decodes one image (fields of shape []) to uint8 [H, W, C]; channels 0 means as stored."""

    def raw() -> tf.Tensor:
        shape = tf.stack([image.height, image.width, channels or -1])
        tf.debugging.Assert(tf.reduce_all(shape[:2] > 0), [shape])
        return tf.reshape(tf.io.decode_raw(image.encoded, tf.uint8), shape)

    # decode_png recognises JPEG too.
    return tf.cond(image.format == "RAW", raw, lambda: tf.io.decode_png(image.encoded, channels))


def decode_window(
    image: EncodedImage, window: Callable[[tf.Tensor], tf.Tensor], channels: int, dct_method: str
) -> tf.Tensor:
    """Decodes a window of one image.

    A JPEG is decoded down to the window's last row, and transformed to pixels in the window only.
    Beside the window's edges its colours, which are stored at half the resolution, differ by some
    grey levels from those of the whole image.

    Args:
      image: fields of shape [].
      window: (height and width of the image, int32 [2]) -> (top, left, height, width), int32 [4].
      channels: channels to decode to, 1 or 3.
      dct_method: of JPEGs, see tf.io.decode_jpeg.

    Returns:
      uint8 [height, width, channels].
    """

    def jpeg() -> tf.Tensor:
        place = window(tf.image.extract_jpeg_shape(image.encoded)[:2])
        return tf.image.decode_and_crop_jpeg(image.encoded, place, channels, dct_method=dct_method)

    def other() -> tf.Tensor:
        return crop(decode_image(image, channels), window)

    # Raw pixels could begin as a JPEG does.
    is_jpeg = tf.io.is_jpeg(image.encoded) & (image.format != "RAW")
    return tf.cond(is_jpeg, jpeg, other)


def crop(image: tf.Tensor, window: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """Cuts a window (see `decode_window`) out of a decoded image uint8 [H, W, C]."""
    top, left, height, width = tf.unstack(window(tf.shape(image)[:2]))
    return image[top : top + height, left : left + width]
