"""A trained net, from its checkpoint alone, and what it says of a picture."""

import dataclasses
import os

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from inception.flags.table import refuse
from inception.training import settings
from slim.conversion import picture_reader
from slim.datasets import finding
from slim.nets import catalog, nets_factory
from slim.preprocessing import preprocessing_factory
from terngrad.training import checkpoints


@dataclasses.dataclass(frozen=True)
class Trained:
    """A net with its weights, and what it was trained for.

    Attributes:
      path: the checkpoint.
      net: name of the net.
      image_size: side length of the images in pixels.
      preprocessing: name of the preprocessing.
      class_names: name of each class, by its index in the logits.
      arrays: the weights by variable name.
    """

    path: str
    net: str
    image_size: int
    preprocessing: str
    class_names: tuple[str, ...]
    arrays: dict[str, np.ndarray]

    def model(self) -> keras.Model:
        """Returns the net, from images to logits, without dropout.

        Raises:
          ValueError: the weights are not those of a net for these classes and images.
        """
        model = nets_factory.build_net(
            self.net,
            num_classes=len(self.class_names),
            image_size=self.image_size,
            for_training=False,
        )
        for v in model.variables:
            name = nets_factory.variable_name(v)
            if self.arrays[name].shape != tuple(v.shape):
                raise ValueError(
                    f"{self.path}: {name} has shape {self.arrays[name].shape}; {self.net} for "
                    f"{len(self.class_names)} classes and {self.image_size} pixels has "
                    f"{tuple(v.shape)}. Does labels.txt belong to this checkpoint?"
                )
            v.assign(self.arrays[name])
        return model


def load(location: str, *, averages: bool) -> Trained:
    """Reads a checkpoint, or the newest one of a folder.

    Args:
      location: value of --checkpoint_dir.
      averages: read the moving averages of the weights.

    Raises:
      ValueError: there is no checkpoint, it is damaged, or it does not say what it was trained for.
    """
    path = checkpoints.find(location, lambda line: logging.warning("%s", line))
    if not path:
        raise refuse("checkpoint_dir", location, "holds no checkpoint")
    noted = settings.noted(path)
    if not {"net", "dataset_name", "image_size"} <= noted.keys():
        raise ValueError(f"{path} does not say which net it holds; train one step more with it")
    spec = catalog.get_spec(noted["net"])
    size = noted["image_size"]
    return Trained(
        path=path,
        net=noted["net"],
        image_size=spec.image_size if size == -1 else size,
        preprocessing=noted.get("preprocessing_name") or spec.preprocessing,
        class_names=_class_names(path, noted),
        arrays=checkpoints.read_weights(path, averages=averages),
    )


def _class_names(path: str, noted: dict) -> tuple[str, ...]:
    names = finding.get_class_names(noted["dataset_name"], os.path.dirname(path))
    return names[noted.get("labels_offset", 0) :]


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
    found = load(location, averages=averages)
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
