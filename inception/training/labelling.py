"""Names what a picture shows."""

import numpy as np
import tensorflow as tf
from absl import logging

from inception.training import trained
from slim.conversion import picture_reader
from slim.nets import catalog
from slim.preprocessing import preprocessing_factory


def label(location: str, image: str, top_k: int, *, averages: bool) -> list[tuple[str, float]]:
    """Returns the most probable classes of a picture, with their probabilities.

    Args:
      location: checkpoint, or folder of checkpoints.
      image: picture file.
      top_k: number of classes, if there are so many.
      averages: use the moving averages of the weights.

    Raises:
      ValueError: there is no checkpoint, it does not say what it was trained for, or the picture
        cannot be read.
    """
    found = trained.load(location, averages=averages)
    pixels = _pixels(image, catalog.get_spec(found.net).channels)
    height, width, _ = pixels.shape
    crop = preprocessing_factory.describe_crop(found.preprocessing, height, width, found.image_size)
    if crop:
        logging.warning("%s: %s; resize it if the net was trained on resized ones", image, crop)
    preprocessing = preprocessing_factory.get_preprocessing(found.preprocessing, is_training=False)
    batch = preprocessing.apply(pixels, found.image_size, seed=tf.zeros([2], tf.int64))[tf.newaxis]
    probabilities = tf.nn.softmax(found.model()(batch))[0].numpy()
    best = np.argsort(-probabilities, kind="stable")[:top_k]
    return [(found.class_names[i], float(probabilities[i])) for i in best]


def _pixels(path: str, channels: int) -> tf.Tensor:
    """Returns a picture as uint8 [H, W, channels], read as the converters read it."""
    with open(path, "rb") as file:
        content = file.read()
    try:
        stored = picture_reader.read(content, picture_reader.Form(raw_pixel=True))
    except ValueError as error:
        raise ValueError(f"--image={path}: {error}") from None
    shape = (stored.height, stored.width, 3)
    pixels = np.frombuffer(stored.encoded, np.uint8).reshape(shape)
    return tf.image.rgb_to_grayscale(pixels) if channels == 1 else tf.constant(pixels)
