"""The commands of an installed package: terngrad-mnist-train is python -m inception.mnist_train.

terngrad-launch is python -m inception.launch, for the suite's programs. terngrad-run is python -m
terngrad.launch, for scripts of your own.

setup.py reads the table before any package is installed, so this module imports none.
"""

from __future__ import annotations

import os
import runpy
import sys

MODULES = (
    "inception.cifar10_distributed_train",
    "inception.cifar10_eval",
    "inception.cifar10_train",
    "inception.data.build_image_data",
    "inception.data.build_imagenet_data",
    "inception.data.preprocess_imagenet_validation_data",
    "inception.data.process_bounding_boxes",
    "inception.distributed_train",
    "inception.download_and_preprocess_flowers",
    "inception.download_and_preprocess_imagenet",
    "inception.evaluate",
    "inception.export",
    "inception.flowers_eval",
    "inception.flowers_train",
    "inception.imagenet_distributed_train",
    "inception.imagenet_eval",
    "inception.imagenet_train",
    "inception.label_image",
    "inception.launch",
    "inception.mnist_distributed_train",
    "inception.mnist_eval",
    "inception.mnist_train",
    "inception.quickstart",
    "inception.sweep",
    "inception.train",
    "slim.download_and_convert_data",
    "slim.eval_image_classifier",
    "slim.train_image_classifier",
    "terngrad.launch",
)
_OTHERS = {"terngrad.launch": "terngrad-run"}


def command_of(module: str) -> str:
    """Returns the command that runs a module of the table."""
    return _OTHERS.get(module) or "terngrad-" + module.rpartition(".")[2].replace("_", "-")


def run() -> None:
    """Runs the module whose command started this process."""
    name = os.path.basename(sys.argv[0])
    (module,) = (module for module in MODULES if command_of(module) == name)
    runpy.run_module(module, run_name="__main__", alter_sys=True)
