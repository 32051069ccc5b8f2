"""ImageNet's classification task of 2012 (ILSVRC): 1.28 million photographs of 1000 classes.

Russakovsky et al.: ImageNet Large Scale Visual Recognition Challenge, IJCV 2015.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence

from slim.datasets.dataset_info import BACKGROUND, DatasetInfo

_SYNSETS_FILE = os.path.join(os.path.dirname(__file__), "imagenet_synsets.txt")


@functools.cache
def synsets() -> dict[str, str]:
    """Returns the name of each class by its WordNet id, in the order of the labels from 1 on."""
    with open(_SYNSETS_FILE, encoding="utf-8") as file:
        return dict(line.rstrip("\n").split("\t") for line in file)


class _ClassNames(Sequence[str]):
    """The names by label, read when they are first needed."""

    def __len__(self) -> int:
        return 1 + len(synsets())

    def __getitem__(self, label: int) -> str:
        return (BACKGROUND, *synsets().values())[label]


INFO = DatasetInfo(
    name="imagenet",
    splits=("train", "validation"),
    class_names=_ClassNames(),
    image_shape=(None, None, 3),
    converter="inception.download_and_preprocess_imagenet {folder}",
)
