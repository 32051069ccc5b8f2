"""The classification problem of a data set and a net, which must fit each other.

This module does not need TensorFlow, so its errors come in the first second.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from inception.flags import configs
from inception.flags.table import naming, refuse
from slim.datasets import dataset_factory, imagenet
from slim.datasets.dataset_info import DatasetInfo
from slim.nets import catalog


@dataclasses.dataclass(frozen=True)
class Problem:
    """A classification problem.

    Attributes:
      num_classes: number of logits.
      image_size: side length of the net's input in pixels.
      channels: channels of the input.
      preprocessing: name of the preprocessing.
      labels_offset: is subtracted from every label.
    """

    num_classes: int
    image_size: int
    channels: int
    preprocessing: str
    labels_offset: int = 0


class NetSettings(NamedTuple):
    """Settings of a training that a net brings where the config leaves them open."""

    dropout_keep_prob: float
    label_smoothing: float


def net_settings(config: configs.TrainConfig) -> NetSettings:
    """Returns the config's values, and the net's published ones for those that are None."""
    spec = catalog.get_spec(config.net)
    named = {name: getattr(config, name) for name in NetSettings._fields}
    return NetSettings(**{k: getattr(spec, k) if v is None else v for k, v in named.items()})


class InputSettings(NamedTuple):
    """Settings of a net's input; the net brings those that a config or a checkpoint leaves open."""

    image_size: int
    preprocessing_name: str


def input_settings(net: str, settings: Mapping[str, Any]) -> InputSettings:
    """Returns the values of `settings`, and the net's own for a size -1 and no preprocessing."""
    spec, size = catalog.get_spec(net), settings.get("image_size", -1)
    return InputSettings(
        image_size=spec.image_size if size == -1 else size,
        preprocessing_name=settings.get("preprocessing_name") or spec.preprocessing,
    )


def problem_of(config: configs.TrainConfig | configs.EvalConfig) -> Problem:
    """Returns the problem; reads labels.txt if only that names the classes.

    Synthetic images of such a data set have as many classes as ImageNet: nothing is read for them.

    Raises:
      ValueError: names the flag at fault, or the line of labels.txt.
    """
    check_net(config)
    info, spec = dataset_factory.get_info(config.dataset_name), catalog.get_spec(config.net)
    channels = info.image_shape[-1]
    if spec.channels != channels:
        why = f"takes {spec.channels}-channel images, those of {info.name} have {channels}"
        raise refuse("net", config.net, f"{why}; allowed: {_fitting_nets(info)}")
    size, preprocessing = input_settings(config.net, vars(config))
    if size < spec.min_image_size:
        raise refuse("image_size", size, f"{config.net} needs {spec.min_image_size} or more")
    if preprocessing not in catalog.PREPROCESSING:
        why = f"unknown preprocessing; allowed are {', '.join(catalog.PREPROCESSING)}"
        raise refuse("preprocessing_name", preprocessing, why)
    labels_offset = config.labels_offset or 0
    with naming("data_dir", config.data_dir):
        num_classes = _count_classes(config) - labels_offset
    if num_classes < 2:
        raise refuse("labels_offset", labels_offset, f"leaves {num_classes} classes")
    return Problem(
        num_classes=num_classes,
        image_size=size,
        channels=channels,
        preprocessing=preprocessing,
        labels_offset=labels_offset,
    )


def check_net(config: configs.TrainConfig | configs.EvalConfig) -> None:
    """Raises ValueError, naming the flag, if the net or the data set is unknown."""
    with naming("dataset_name", config.dataset_name):
        info = dataset_factory.get_info(config.dataset_name)
    if not config.net:
        why = f"must be given: data set {info.name} names none; allowed: {_fitting_nets(info)}"
        raise refuse("net", "", why)
    with naming("net", config.net):
        catalog.get_spec(config.net)


def _fitting_nets(info: DatasetInfo) -> str:
    channels = info.image_shape[-1]
    return ", ".join(name for name, net in catalog.NETS.items() if net.channels == channels)


def _count_classes(config: configs.TrainConfig | configs.EvalConfig) -> int:
    if isinstance(config, configs.TrainConfig) and config.benchmark_mode:
        names = dataset_factory.get_info(config.dataset_name).class_names
        return len(names or imagenet.INFO.class_names)
    return len(dataset_factory.get_class_names(config.dataset_name, config.data_dir))
