"""Writes trained nets in the formats of Keras and TensorFlow."""

import os
import tempfile

import keras
import numpy as np
import tensorflow as tf

from inception.training import trained
from slim.datasets import labels
from slim.nets.layers import CoveringConv2D, LocalResponseNormalization
from slim.preprocessing import portable as preprocessing
from terngrad.training.errors import first_line


def export(
    location: str, output: str, format_name: str, *, averages: bool, with_preprocessing: bool
) -> None:
    """Writes the net of a checkpoint and the names of its classes; replaces an earlier export.

    The names stand in NAME.labels.txt beside NAME.keras, or in labels.txt in a SavedModel's folder.

    Args:
      location: checkpoint, or folder of checkpoints.
      output: a .keras file, or the folder of a SavedModel.
      format_name: "keras" or "savedmodel".
      averages: export the moving averages of the weights.
      with_preprocessing: the model takes uint8 pixels of images of any size, and preprocesses them.

    Raises:
      ValueError: there is no checkpoint, or it does not say what it was trained for.
      OSError: the output cannot be written; nothing is left behind.
    """
    found = trained.load(location, averages=averages)
    model = portable(found.model())
    if with_preprocessing:
        model = preprocessing.with_preprocessing(model, found.preprocessing)
    folder, name = os.path.split(os.path.abspath(output))
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".export", dir=folder) as scratch:
        written = os.path.join(scratch, name)
        _write(model, written, format_name)
        if format_name == "keras":
            names_file = f"{os.path.splitext(name)[0]}.labels.txt"
            labels.write_labels(folder, found.class_names, names_file)
        else:
            labels.write_labels(written, found.class_names)
        if os.path.isdir(output):
            os.rename(output, os.path.join(scratch, "replaced"))
        os.replace(written, output)
    takes = "uint8 pixels of any size" if with_preprocessing else f"{found.image_size} pixels"
    contained = "contained " if with_preprocessing else ""
    print(
        f"{found.path} is exported to {output}: {found.net}, {takes}, "
        f"{len(found.class_names)} classes, {contained}preprocessing {found.preprocessing}."
    )


def _write(model: keras.Model, path: str, format_name: str) -> None:
    try:
        model.save(path) if format_name == "keras" else model.export(path, verbose=False)
    except tf.errors.OpError as error:
        raise OSError(f"{path} cannot be written: {first_line(error)}") from error


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
