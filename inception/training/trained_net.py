"""A trained net from its checkpoint alone: the classes of a picture, and the export."""

import dataclasses
import functools
import os
import tempfile

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from inception.flags.table import refuse
from inception.training import settings
from inception.training.problem import input_settings
from slim.conversion import picture_reader
from slim.datasets import dataset_factory, dataset_info
from slim.nets import catalog, nets_factory
from slim.nets.net_builder import CoveringConv2D, LocalResponseNormalization
from slim.preprocessing import portable as preprocessing
from slim.preprocessing import preprocessing_factory
from terngrad.training import checkpoints
from terngrad.training.errors import first_line


@dataclasses.dataclass(frozen=True)
class TrainedNet:
    """A net with its weights, and the problem that it was trained for.

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


def load(location: str, *, averages: bool | None) -> TrainedNet:
    """Reads a checkpoint, or the newest one of a folder.

    Args:
      location: value of --checkpoint_dir.
      averages: read the moving averages of the weights; None = if there are any.

    Raises:
      ValueError: there is no checkpoint, it is damaged, or it does not say what it was trained for.
    """
    path = checkpoints.find(location, lambda line: logging.warning("%s", line))
    if not path:
        raise refuse("checkpoint_dir", location, "holds no checkpoint")
    stored = settings.settings_of_checkpoint(path)
    if not {"net", "dataset_name", "image_size"} <= stored.keys():
        raise ValueError(f"{path} does not say which net it holds; train one step more with it")
    if averages is None and not (averages := checkpoints.has_averages(path)):
        logging.warning("%s holds no moving averages; the weights are used", path)
    size, preprocessing_name = input_settings(stored["net"], stored)
    return TrainedNet(
        path=path,
        net=stored["net"],
        image_size=size,
        preprocessing=preprocessing_name,
        class_names=_class_names(path, stored),
        arrays=checkpoints.read_weights(path, averages=averages),
    )


def _class_names(path: str, stored: dict) -> tuple[str, ...]:
    names = dataset_factory.get_class_names(stored["dataset_name"], os.path.dirname(path) or ".")
    return names[stored.get("labels_offset", 0) :]


def label(
    location: str, image: str, top_k: int, *, averages: bool | None
) -> list[tuple[str, float]]:
    """Returns the most probable classes of a picture, with their probabilities.

    Args:
      location: checkpoint, or folder of checkpoints.
      image: picture file.
      top_k: number of classes, if there are so many.
      averages: use the moving averages of the weights; see `load`.

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


def export(
    location: str, output: str, format_name: str, *, averages: bool | None, with_preprocessing: bool
) -> None:
    """Writes the net of a checkpoint and the names of its classes; replaces an earlier export.

    The names stand in NAME.labels.txt beside NAME.keras, or in labels.txt in a SavedModel's folder.

    Args:
      location: checkpoint, or folder of checkpoints.
      output: a .keras file, or the folder of a SavedModel.
      format_name: "keras" or "savedmodel".
      averages: export the moving averages of the weights; see `load`.
      with_preprocessing: the model takes uint8 pixels of images of any size, and preprocesses them.

    Raises:
      ValueError: there is no checkpoint, or it does not say what it was trained for; or the output
        cannot be written, and nothing is left behind.
    """
    found = load(location, averages=averages)
    model = portable(found.model())
    if with_preprocessing:
        model = preprocessing.with_preprocessing(model, found.preprocessing)
    try:
        _publish(model, found.class_names, output, format_name)
    except OSError as error:
        raise refuse("output", output, f"cannot be written: {error.strerror or error}") from error
    takes = "uint8 pixels of any size" if with_preprocessing else f"{found.image_size} pixels"
    contained = "contained " if with_preprocessing else ""
    print(
        f"{found.path} is exported to {output}: {found.net}, {takes}, "
        f"{len(found.class_names)} classes, {contained}preprocessing {found.preprocessing}."
    )


def _publish(
    model: keras.Model, class_names: tuple[str, ...], output: str, format_name: str
) -> None:
    """Writes a model and the names of its classes under temporary names, then renames them."""
    folder, name = os.path.split(os.path.abspath(output))
    os.makedirs(folder, exist_ok=True)
    scratch_folder = functools.partial(tempfile.TemporaryDirectory, prefix=".export", dir=folder)
    with scratch_folder() as scratch, scratch_folder() as replaced:
        written = os.path.join(scratch, name)
        _write(model, written, format_name)
        if format_name == "keras":
            names_file = f"{os.path.splitext(name)[0]}.labels.txt"
            dataset_info.write_labels(folder, class_names, names_file)
        else:
            dataset_info.write_labels(written, class_names)
        if os.path.isdir(output):
            os.rename(output, os.path.join(replaced, name))
        os.replace(written, output)


def _write(model: keras.Model, path: str, format_name: str) -> None:
    try:
        model.save(path) if format_name == "keras" else model.export(path, verbose=False)
    except tf.errors.OpError as error:
        raise OSError(first_line(error)) from error


def portable(model: keras.Model) -> keras.Model:
    """Returns the same model without layers of this suite's own, so that Keras alone loads it.

    Args:
      model: a net without dropout.
    """
    copy = keras.models.clone_model(model, clone_function=_portable_layer)
    for theirs, ours in zip(copy.variables, model.variables, strict=True):
        theirs.assign(ours)
    return copy


def _portable_layer(layer: keras.Layer) -> keras.Layer:
    if isinstance(layer, CoveringConv2D):
        return keras.layers.Conv2D.from_config(layer.get_config())
    if not isinstance(layer, LocalResponseNormalization):
        return layer.__class__.from_config(layer.get_config())
    values = keras.Input(layer.input.shape[1:])
    channels = np.arange(values.shape[-1])
    near = np.abs(channels[:, np.newaxis] - channels) <= layer.radius
    sums = keras.ops.matmul(keras.ops.square(values), near.astype(np.float32))
    divisor = keras.ops.power(layer.bias + layer.alpha * sums, layer.beta)
    return keras.Model(values, values / divisor, name=layer.name)
