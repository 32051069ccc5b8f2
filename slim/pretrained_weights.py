"""Reads weights that other programs wrote, under the suite's names: TF-Slim's and Keras'.

A checkpoint of TF-Slim names a kernel `InceptionV3/Conv2d_1a_3x3/weights` and a bias `.../biases`.
The suite calls them `kernel` and `bias`, as Keras does. All other names and all shapes are equal,
since the suite's nets have TF-Slim's scopes.

A file of Keras (.keras, .weights.h5 or .h5) is read layer by layer. Its layers have the names of
the suite's net, if the suite exported it, or those of the net in keras.applications.
"""

from __future__ import annotations

import itertools
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import h5py
import numpy as np
import tensorflow as tf


class Weights(NamedTuple):
    """The weights in a file.

    Attributes:
      layout: what kind of file it is, for messages.
      arrays: the weights by the suite's name of the variable, e.g. "vgg_16/fc8/kernel".
      left_out: the names of the file's other variables, which are no weights of a net.
    """

    layout: str
    arrays: dict[str, np.ndarray]
    left_out: tuple[str, ...] = ()


_LAST_PARTS = {"weights": "kernel", "biases": "bias", "depthwise_weights": "depthwise_kernel"}
_LAST_PARTS |= {"pointwise_weights": "pointwise_kernel"}
_LAST_PARTS |= {name: name for name in ("beta", "gamma", "moving_mean", "moving_variance")}
# Scopes of small nets, whose variables have no scope in the suite, and a layer with another name.
_SCOPES = {"lenet_slim": "LeNet", "cifarnet": "CifarNet"}
_LAYERS = {("lenet_slim", "fc4"): "logits"}


def read_tf_slim(path: str, net: str, reader: tf.train.CheckpointReader | None = None) -> Weights:
    """Reads a checkpoint that TF-Slim wrote with TensorFlow 1, in either of its two formats.

    Args:
      path: the checkpoint, without the endings of its files.
      net: name of the net, e.g. "inception_v3".
      reader: of the checkpoint; None opens it here.

    Raises:
      ValueError: the file is no readable checkpoint, or it holds no weight of a net.
    """
    try:
        reader = reader or tf.train.load_checkpoint(path)
        names = sorted(reader.get_variable_to_shape_map())
        arrays = {name: reader.get_tensor(name) for name in names if _suite_name(name, net)}
    except (tf.errors.OpError, ValueError, IndexError) as error:  # IndexError: it is too short
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path} is not a readable checkpoint: {reason}") from error
    if not arrays:
        raise ValueError(f"{path} holds no weights with TF-Slim's names")
    left_out = tuple(name for name in names if name not in arrays)
    named = {_suite_name(name, net): array for name, array in arrays.items()}
    return Weights("TF-Slim's checkpoint", named, left_out)


def suite_scope(scope: str, net: str) -> str:
    """Returns the suite's name of a scope that a user may know from TF-Slim."""
    inner = scope.removeprefix(_SCOPES.get(net, "")).removeprefix("/")
    return _LAYERS.get((net, inner), inner)


def _suite_name(name: str, net: str) -> str | None:
    """Returns the suite's name of a weight; None for slots, averages and the global step."""
    scope, _, last = name.rpartition("/")
    if not scope or last not in _LAST_PARTS or re.search(r"(^|/)(Momentum|Adam|RMSProp)", scope):
        return None
    return f"{suite_scope(scope, net)}/{_LAST_PARTS[last]}"


KERAS_ENDINGS = (".keras", ".h5")
# The order in which Keras stores the weights of a layer.
_PARTS = ("depthwise_kernel", "pointwise_kernel", "kernel", "bias")
_PARTS += ("gamma", "beta", "moving_mean", "moving_variance")

# Groups in a file of Keras that are not the net's: of the training that made it.
_NO_LAYERS = frozenset({"optimizer", "metrics"})

# Nets whose images have blue as the first channel in keras.applications.
_BLUE_FIRST = ("vgg_", "resnet_v1_")
_CHANNELS = 3

Layers = Mapping[str, Sequence[np.ndarray]]
Shapes = Mapping[str, tuple[int, ...]]


def read_keras(path: str, net: str, shapes: Shapes) -> Weights:
    """Reads a file of Keras for a net.

    Args:
      path: the file.
      net: name of the net, e.g. "vgg_16".
      shapes: shapes of the net's variables, by the suite's names.

    Raises:
      ValueError: the file is damaged, or its layers are those of another net.
    """
    layers = _read_keras_layers(path)
    ours = set(map(_layer_of, shapes))
    is_of_applications = not ours & {name.replace(".", "/") for name in layers}
    if is_of_applications:
        layers = _renamed(path, net, layers, sorted(ours))
    arrays: dict[str, np.ndarray] = {}
    left_out = []
    biases = {}
    for name, values in layers.items():
        layer = name.replace(".", "/")
        parts = [part for part in _PARTS if f"{layer}/{part}" in shapes]
        if not parts:
            left_out.append(name)
            continue
        if len(values) == len(parts) + 1 and parts == ["kernel"]:
            biases[layer] = values[1]
        elif len(values) != len(parts):
            raise ValueError(
                f"{path}: layer {name} holds {len(values)} arrays; {net} needs {', '.join(parts)}"
            )
        for part, array in zip(parts, values, strict=False):
            arrays[f"{layer}/{part}"] = _shaped(array, shapes[f"{layer}/{part}"])
    _move_biases(path, biases, arrays)
    if is_of_applications and net.startswith(_BLUE_FIRST):
        _reverse_channels(arrays)
    return Weights("Keras' weights", arrays, tuple(left_out))


def _read_keras_layers(path: str) -> dict[str, list[np.ndarray]]:
    """Returns the arrays of each layer that has any, by the layer's name, in Keras' order."""
    try:
        if zipfile.is_zipfile(path):
            with (
                zipfile.ZipFile(path) as archive,
                archive.open("model.weights.h5") as inner,
                h5py.File(inner, "r") as file,
            ):
                return dict(_layers(file))
        with h5py.File(path, "r") as file:
            return dict(_layers(file))
    except Exception as error:  # h5py reads a damaged file, which can fail in any way
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} is not a readable file of Keras: {reason}") from error


def _layers(file: h5py.File) -> Iterator[tuple[str, list[np.ndarray]]]:
    root = file.get("model_weights", file)
    if "layer_names" in root.attrs:  # the layout of Keras 2
        for name in map(_text, root.attrs["layer_names"]):
            arrays = [root[name][_text(key)][()] for key in root[name].attrs["weight_names"]]
            if arrays:
                yield name, arrays
        return
    groups: list[h5py.Group] = []
    root.visititems(lambda key, item: groups.append(item) if key.endswith("vars") else None)
    for group in groups:
        if "name" in group.attrs and len(group) and _NO_LAYERS.isdisjoint(group.name.split("/")):
            yield _text(group.attrs["name"]), [group[key][()] for key in sorted(group, key=int)]


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _layer_of(variable: str) -> str:
    return variable.rpartition("/")[0]


def _shaped(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Turns the kernel of a dense layer into that of the convolution which does the same."""
    return array.reshape(shape) if array.ndim == 2 and array.size == np.prod(shape) else array


def _reverse_channels(arrays: dict[str, np.ndarray]) -> None:
    """Reverses the input channels of the first kernel: from BGR to RGB."""
    for name, array in arrays.items():
        if array.ndim == 4 and array.shape[2] == _CHANNELS:
            arrays[name] = array[:, :, ::-1]


def _move_biases(path: str, biases: Layers, arrays: dict[str, np.ndarray]) -> None:
    """Moves the bias of a layer that has none here into the batch norm behind it.

    Batch norm subtracts a moving mean, so x with mean - bias gives the same as x + bias with mean.
    """
    for layer, bias in biases.items():
        mean = f"{layer}/BatchNorm/moving_mean"
        if mean not in arrays:
            raise ValueError(f"{path}: layer {layer} has a bias, for which this net has no place")
        arrays[mean] = arrays[mean] - bias


def _renamed(path: str, net: str, layers: Layers, ours: Sequence[str]) -> Layers:
    """Gives the layers of keras.applications the names of the suite's net.

    Args:
      path: the file, for errors.
      net: name of the net.
      layers: arrays by the layers' names in the file.
      ours: names of the net's layers, with "/".
    """
    family = next((rule for prefix, rule in _FAMILIES.items() if net.startswith(prefix)), None)
    if family is None:
        raise ValueError(
            f"{path}: its layers are not those of {net}, e.g. {next(iter(layers), '')}"
        )
    names = family(net, list(layers), ours)
    unknown = [name for name in layers if names.get(name) not in ours]
    if unknown:
        raise ValueError(f"{path}: its layers are not those of {net}, e.g. {unknown[0]}")
    return {names[name]: arrays for name, arrays in layers.items()}


def _vgg(net: str, layers: Sequence[str], ours: Sequence[str]) -> dict[str, str]:
    names = {"fc1": f"{net}/fc6", "fc2": f"{net}/fc7", "predictions": f"{net}/fc8"}
    for layer in layers:
        if match := re.fullmatch(r"block(\d)_conv(\d)", layer):
            names[layer] = f"{net}/conv{match[1]}/conv{match[1]}_{match[2]}"
    return names


def _resnet(net: str, layers: Sequence[str], ours: Sequence[str]) -> dict[str, str]:
    version = net.split("_")[1]
    names = {
        "conv1_conv": f"{net}/conv1",
        "conv1_bn": f"{net}/conv1/BatchNorm",
        "post_bn": f"{net}/postnorm",
        "predictions": f"{net}/logits",
        "probs": f"{net}/logits",  # its name in older releases
    }
    for layer in layers:
        if match := re.fullmatch(r"conv(\d)_block(\d+)_(\d|preact)_(conv|bn)", layer):
            unit = f"{net}/block{int(match[1]) - 1}/unit_{match[2]}/bottleneck_{version}"
            part = {"0": "shortcut", "preact": "preact"}.get(match[3], f"conv{match[3]}")
            norm = "/BatchNorm" if match[4] == "bn" and part != "preact" else ""
            names[layer] = f"{unit}/{part}{norm}"
    return names


def _inception(net: str, layers: Sequence[str], ours: Sequence[str]) -> dict[str, str]:
    """Maps layers by their order in the net, because most have only a numbered name there."""
    heads = ("Logits", "AuxLogits")
    body = [name for name in ours if name.split("/")[1] not in heads]
    scope = ours[0].partition("/")[0]
    names = {
        "predictions": next(
            name for name in ours if name.startswith((f"{scope}/Logits/",)) and "Norm" not in name
        )
    }
    names |= _named_in_inception_resnet(scope, layers)
    for kind, norm in (("conv2d", False), ("batch_normalization", True)):
        numbered = [name for name in layers if re.fullmatch(rf"{kind}(_\d+)?", name)]
        wanted = [
            name
            for name in body
            if name.endswith("/BatchNorm") == norm and name not in names.values()
        ]
        pairs = itertools.zip_longest(
            sorted(numbered, key=_number_key), sorted(wanted, key=_net_order_key)
        )
        names |= {theirs: our for theirs, our in pairs if theirs and our}
    return names


def _named_in_inception_resnet(scope: str, layers: Sequence[str]) -> dict[str, str]:
    names = {"conv_7b": f"{scope}/Conv2d_7b_1x1", "conv_7b_bn": f"{scope}/Conv2d_7b_1x1/BatchNorm"}
    repeats = {"block35": "Repeat", "block17": "Repeat_1", "block8": "Repeat_2"}
    for layer in layers:
        if match := re.fullmatch(r"(block\d+)_(\d+)_conv", layer):
            block = f"{repeats[match[1]]}/{match[1]}_{match[2]}"
            block = "Block8" if block == "Repeat_2/block8_10" else block
            names[layer] = f"{scope}/{block}/Conv2d_1x1"
    return {layer: name for layer, name in names.items() if layer in layers}


def _number_key(name: str) -> list[int]:
    """Returns a key that sorts layers by the number in their names: conv2d, conv2d_1, ..."""
    return [int(number) for number in re.findall(r"\d+", name.removeprefix("conv2d"))]


def _net_order_key(name: str) -> list[tuple[str, int]]:
    """Returns a key that sorts layers from input to output, branch by branch.

    keras.applications makes them in this order. TF-Slim's names sort so by themselves, except for
    the repeated blocks of Inception-ResNet.
    """
    places = {"Repeat": "Mixed_5z", "Repeat_1": "Mixed_6z", "Repeat_2": "Mixed_7y"}
    places["Block8"] = "Mixed_7z"
    placed = "/".join(places.get(part, part) for part in name.split("/"))
    parts = re.findall(r"(\D*)(\d*)", placed)
    return [(text, int(number or 0)) for text, number in parts]


_FAMILIES: dict[str, Callable[[str, Sequence[str], Sequence[str]], dict[str, str]]] = {
    "vgg_": _vgg,
    "resnet_": _resnet,
    "inception_v3": _inception,
    "inception_resnet_v2": _inception,
}
