"""Decodes stored images, whole or only a window of them."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import NamedTuple

import tensorflow as tf
from google.protobuf import message

from slim.datasets.picture_files import BOX_SIDES

ImageShape = tuple[int | None, int | None, int | None]  # H, W, C
ANY_SHAPE: ImageShape = (None, None, None)

Features = MutableMapping[str, tf.train.Feature]  # of a tf.train.Example, by key

_RAW = b"raw"  # image/format of pixels, in lower case
_BYTES, _FLOATS, _INTS = "bytes_list", "float_list", "int64_list"  # of tf.train.Feature
_TYPES = {_BYTES: "bytes", _FLOATS: "float", _INTS: "int64"}
_KEYS = {  # with one value each
    "image/class/label": _INTS,
    "image/encoded": _BYTES,
    "image/format": _BYTES,
    "image/height": _INTS,
    "image/width": _INTS,
}
_REQUIRED = ("image/class/label", "image/encoded")


class EncodedImage(NamedTuple):
    """Encoded images: tensors of shape [] for an image, or [B] for a batch."""

    encoded: tf.Tensor  # string
    format: tf.Tensor  # string
    height: tf.Tensor  # int64, read for RAW only
    width: tf.Tensor  # int64, read for RAW only


def decode_image(image: EncodedImage, channels: int) -> tf.Tensor:
    """Decodes one image (fields of shape []) to uint8 [H, W, C]; channels 0 means as stored."""

    def raw() -> tf.Tensor:
        shape = tf.stack([image.height, image.width, channels or -1])
        tf.debugging.Assert(tf.reduce_all(shape[:2] > 0), [shape])
        return tf.reshape(tf.io.decode_raw(image.encoded, tf.uint8), shape)

    # decode_png recognises JPEG too, and animations, which have a dimension more.
    decoded = tf.cond(_is_raw(image), raw, lambda: tf.io.decode_png(image.encoded, channels))
    return tf.ensure_shape(decoded, (None, None, channels or None))


def decode_window(
    image: EncodedImage, window: Callable[[tf.Tensor], tf.Tensor], channels: int, dct_method: str
) -> tf.Tensor:
    """Decodes a window of one image.

    A JPEG is read down to the window's last row, and turned into pixels in the window only. Its
    colours may be stored at half the resolution. The window's outermost column then differs by some
    grey levels from the same column of the whole image, which has a neighbour.

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
    is_jpeg = tf.io.is_jpeg(image.encoded) & ~_is_raw(image)
    return tf.cond(is_jpeg, jpeg, other)


def crop(image: tf.Tensor, window: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """Cuts a window (see `decode_window`) out of a decoded image uint8 [H, W, C]."""
    top, left, height, width = tf.unstack(window(tf.shape(image)[:2]))
    return image[top : top + height, left : left + width]


def find_fault(serialized: bytes, image_shape: ImageShape) -> str:
    """Returns what is wrong with a serialized Example that cannot be parsed or decoded.

    Args:
      serialized: the Example.
      image_shape: the shape that its image must have; None allows all.

    Returns:
      The first fault: of the keys, then of the image; "" if none is found.
    """
    try:
        feature = tf.train.Example.FromString(serialized).features.feature
    except message.DecodeError:
        return "it is no tf.train.Example"
    return _fault_of_keys(feature) or _fault_of_image(feature, image_shape)


def _is_raw(image: EncodedImage) -> tf.Tensor:
    return tf.strings.lower(image.format) == _RAW  # TF-Slim also writes and reads "raw"


def _fault_of_keys(feature: Features) -> str:
    """Returns which key is missing, or holds values of another type or number."""
    for key, wanted in _KEYS.items():
        found = feature[key].WhichOneof("kind")
        if not found and key in _REQUIRED:
            return f"{key} is missing"
        if found and found != wanted:
            return f"{key} is of type {_TYPES[found]}, must be {_TYPES[wanted]}"
        count = len(getattr(feature[key], wanted).value)
        if found and count != 1:
            return f"{key} has {count} values, must have one"
    sides = {key: feature[key] for key in (f"image/object/bbox/{side}" for side in BOX_SIDES)}
    for key, values in sides.items():
        if (found := values.WhichOneof("kind")) not in (None, _FLOATS):
            return f"{key} is of type {_TYPES[found]}, must be {_TYPES[_FLOATS]}"
    if len({len(values.float_list.value) for values in sides.values()}) > 1:
        return "its bounding boxes have unequal numbers of sides"
    return ""


def _fault_of_image(feature: Features, image_shape: ImageShape) -> str:
    """Returns why an image, whose keys are whole, cannot be decoded or is of a wrong shape."""
    channels = image_shape[-1]
    encoded = feature["image/encoded"].bytes_list.value[0]
    if not encoded:
        return "image/encoded is empty"
    if b"".join(feature["image/format"].bytes_list.value).lower() == _RAW:
        sides = [sum(feature[f"image/{side}"].int64_list.value) for side in ("height", "width")]
        size = " x ".join(map(str, sides)) + " pixels"
        if min(sides) <= 0:
            return f"the image is {size}"
        if not channels or len(encoded) != channels * sides[0] * sides[1]:
            of = f" of {channels} channels" if channels else ""
            return f"image/encoded is RAW with {len(encoded)} bytes, but the image has {size}{of}"
        found = (*sides, channels)
    else:
        try:
            found = tuple(decode_image(EncodedImage(encoded, "", 0, 0), channels or 0).shape)
        except tf.errors.InvalidArgumentError:
            return "image/encoded is neither a JPEG nor a PNG that can be decoded"
    if all(wanted in (None, side) for side, wanted in zip(found, image_shape, strict=True)):
        return ""
    there, wanted = (
        " x ".join("any" if side is None else str(side) for side in shape)
        for shape in (found, image_shape)
    )
    return f"the image is {there}, must be {wanted}"
