"""A trained net, from its checkpoint alone."""

import dataclasses
import os

import keras
import numpy as np
from absl import logging

from inception.flags.table import refuse
from inception.training import settings
from slim.datasets import finding
from slim.nets import catalog, nets_factory
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
