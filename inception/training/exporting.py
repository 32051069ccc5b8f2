"""Writes trained nets in the formats of Keras and TensorFlow."""

import os
import shutil

import keras
import numpy as np

from inception.training import trained
from slim.datasets import labels
from slim.nets.layers import CoveringConv2D, LocalResponseNormalization


def export(location: str, output: str, format_name: str, *, averages: bool) -> None:
    """Writes the net of a checkpoint, and labels.txt beside it; replaces what is there.

    Args:
      location: checkpoint, or folder of checkpoints.
      output: a .keras file, or the folder of a SavedModel.
      format_name: "keras" or "savedmodel".
      averages: export the moving averages of the weights.

    Raises:
      ValueError: there is no checkpoint, or it does not say what it was trained for.
      OSError: the output cannot be written; nothing is left behind.
    """
    found = trained.load(location, averages=averages)
    model = portable(found.model())
    folder, name = os.path.split(os.path.abspath(output))
    os.makedirs(folder, exist_ok=True)
    temporary = os.path.join(folder, f".{os.getpid()}.{name}")
    try:
        model.save(temporary) if format_name == "keras" else model.export(temporary, verbose=False)
        if os.path.isdir(output):
            shutil.rmtree(output)
        os.replace(temporary, output)
    finally:
        if os.path.isdir(temporary):
            shutil.rmtree(temporary)
        elif os.path.exists(temporary):
            os.remove(temporary)
    labels.write_labels(output if os.path.isdir(output) else folder, found.class_names)
    print(
        f"{found.path} is exported to {output}: {found.net}, {found.image_size} pixels, "
        f"{len(found.class_names)} classes, preprocessing {found.preprocessing}."
    )


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
