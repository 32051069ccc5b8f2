"""Facts about data sets, known without their files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from slim.datasets.picture_files import Pictures

# By name of the split: images uint8 [N, H, W, C] and labels int64 [N], or picture files.
Splits = Mapping[str, tuple[np.ndarray, np.ndarray] | Pictures]


@dataclasses.dataclass(frozen=True)
class DatasetInfo:
    """One data set.

    Attributes:
      name: as in --dataset_name.
      splits: names of its splits.
      class_names: name of each class, by label; None if labels.txt beside the records names them.
      image_shape: (H, W, C) as stored; H and W are None if the images differ in size.
      net: net by its name in slim/nets that programs train unless --net names one; "" = it must.
      converter: command that makes the records, with {folder} for their folder; "" stands for
        slim.download_and_convert_data.
      num_shards: record files of each split; None = one, which is named after the data set.
      png_compression: level of the PNG encoder in the conversion, 0 to 9; -1 is PNG's default.
    """

    name: str
    splits: tuple[str, ...]
    class_names: Sequence[str] | None
    image_shape: tuple[int | None, int | None, int]
    net: str = ""
    converter: str = ""
    num_shards: Mapping[str, int] | None = None
    png_compression: int = -1

    def command(self, folder: str) -> str:
        """Returns the command that makes the records in a folder."""
        default = "slim.download_and_convert_data --dataset_name={name} --dataset_dir={folder}"
        return "python -m " + (self.converter or default).format(name=self.name, folder=folder)


def check_split(info: DatasetInfo, source: str, images: np.ndarray, labels: np.ndarray) -> None:
    """Raises ValueError, naming `source`, unless images and labels are what `info` describes."""
    if len(images) == 0 or len(images) != len(labels):
        raise ValueError(f"{source}: {len(images)} images with {len(labels)} labels; must be equal")
    if images.shape[1:] != info.image_shape:
        raise ValueError(f"{source}: images are {images.shape[1:]}, must be {info.image_shape}")
    if labels.min() < 0 or labels.max() >= len(info.class_names):
        raise ValueError(
            f"{source}: labels lie in [{labels.min()}, {labels.max()}], "
            f"must lie in [0, {len(info.class_names) - 1}]"
        )
