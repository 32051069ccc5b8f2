"""Preprocessing by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from slim.datasets import decoding
from slim.preprocessing import cropping, inception, vgg


def whole_image(shape: tf.Tensor, boxes: tf.Tensor, size: int, seed: tf.Tensor) -> tf.Tensor:
    """Returns the window that is the whole image."""
    del boxes, size, seed
    return tf.concat([tf.zeros_like(shape), shape], axis=0)


class Preprocessing(NamedTuple):
    """Two functions that turn a stored image into a net's input. All draws depend on the seed only.

    Attributes:
      window: (height and width of the image, int32 [2]; bounding boxes (ymin, xmin, ymax, xmax) as
        shares of them, float32 [N, 4]; size in pixels; seed int64 [2]) -> the window of the image
        to decode, (top, left, height, width), int32 [4].
      finish: (window uint8 [h, w, C], size, seed) -> float32 [size, size, C].
    """

    window: Callable[[tf.Tensor, tf.Tensor, int, tf.Tensor], tf.Tensor]
    finish: Callable[[tf.Tensor, int, tf.Tensor], tf.Tensor]

    def apply(self, image: tf.Tensor, size: int, seed: tf.Tensor) -> tf.Tensor:
        """Preprocesses an image without boxes, uint8 [H, W, C], to float32 [size, size, C]."""
        if self.window is not whole_image:
            no_boxes = tf.zeros([0, 4])
            image = decoding.crop(image, lambda shape: self.window(shape, no_boxes, size, seed))
        return self.finish(image, size, seed)


_PREPROCESSING: dict[str, tuple[Preprocessing, Preprocessing]] = {  # for training, for evaluation
    "alexnet": (
        Preprocessing(vgg.alexnet_training_window, vgg.finish_for_training),
        Preprocessing(vgg.alexnet_evaluation_window, vgg.finish_for_evaluation),
    ),
    "cifarnet": (
        Preprocessing(whole_image, cropping.cifarnet_for_training),
        Preprocessing(whole_image, cropping.cifarnet_for_evaluation),
    ),
    "inception": (
        Preprocessing(inception.training_window, inception.finish_for_training),
        Preprocessing(inception.evaluation_window, inception.finish_for_evaluation),
    ),
    "lenet": (Preprocessing(whole_image, cropping.lenet),) * 2,
    "unit": (Preprocessing(whole_image, cropping.unit),) * 2,
    "vgg": (
        Preprocessing(vgg.training_window, vgg.finish_for_training),
        Preprocessing(vgg.evaluation_window, vgg.finish_for_evaluation),
    ),
}


_CROPPING = ("cifarnet", "lenet", "unit")  # cut pixels out of the image and never resize
_LITTLE = 0.25  # of an image's area


def describe_crop(name: str, height: int, width: int, size: int) -> str:
    """Describes what a preprocessing keeps of an image, if that is below a quarter of its area.

    Args:
      name: of the preprocessing.
      height: of the image in pixels.
      width: of the image in pixels.
      size: side of the preprocessed image in pixels.

    Returns:
      The beginning of a warning, or "".
    """
    share = min(size, height) * min(size, width) / (height * width)
    if name not in _CROPPING or share >= _LITTLE:
        return ""
    return (
        f"preprocessing {name} cuts {size} x {size} pixels out of images of "
        f"{height} x {width}, {100 * share:.2g} % of their area"
    )


def get_preprocessing(name: str, is_training: bool) -> Preprocessing:
    """Returns the preprocessing of a name; ValueError lists the allowed names."""
    if name not in _PREPROCESSING:
        raise ValueError(f"unknown preprocessing {name!r}; allowed: {', '.join(_PREPROCESSING)}")
    for_training, for_evaluation = _PREPROCESSING[name]
    return for_training if is_training else for_evaluation
