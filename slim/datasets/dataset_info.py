"""Properties of data sets, known without their files, and the names of their classes."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence

import numpy as np

from slim.datasets import files
from slim.datasets.picture_files import BACKGROUND, Pictures

# By name of the split: images uint8 [N, H, W, C] and labels int64 [N], or picture files.
Splits = Mapping[str, tuple[np.ndarray, np.ndarray] | Pictures]
_FILE = "labels.txt"


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


def exist(folder: str) -> bool:
    """Returns whether a folder has a labels.txt."""
    return os.path.exists(os.path.join(folder, _FILE))


def read_labels(folder: str) -> tuple[str, ...]:
    """Reads the lines id:name of labels.txt and returns the name of each label, from 0 on.

    The ids count up from 0 or from 1. In the second case label 0 is the background.

    Raises:
      ValueError: the file is missing, or a line has no id, another id than the next, or no name.
    """
    path = os.path.join(folder, _FILE)
    try:
        with open(path, encoding="utf-8-sig") as file:
            numbered = enumerate(file.read().splitlines(), 1)
            lines = [(number, line) for number, line in numbered if line.strip()]
    except FileNotFoundError:
        raise ValueError(f"{path} is missing; it has a line id:name for each class") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read ({error})") from None
    if not lines:
        raise ValueError(f"{path} is empty; it must have a line id:name for each class")
    names = [] if lines[0][1].partition(":")[0].strip() == "0" else [BACKGROUND]
    for number, line in lines:
        label, _, name = (part.strip() for part in line.partition(":"))
        if label != str(len(names)) or not name:
            raise ValueError(f"{path}: line {number} is {line!r}, must be {len(names)}:name")
        names.append(name)
    return tuple(names)


def write_labels(folder: str, names: Sequence[str], file_name: str = _FILE) -> None:
    """Writes labels.txt, or a file of another name, with the name of each label, from 0 on."""
    with files.replacing_text(os.path.join(folder, file_name)) as file:
        file.writelines(f"{label}:{name}\n" for label, name in enumerate(names))


def check_labels(folder: str, names: Sequence[str], source: str) -> None:
    """Raises ValueError if the folder has a labels.txt with other classes than `names`.

    Args:
      folder: folder that may have a labels.txt.
      names: name of each label, from 0 on.
      source: where `names` are from, in the plural, for the error.
    """
    if not exist(folder):
        return
    path, there = os.path.join(folder, _FILE), read_labels(folder)
    if len(there) != len(names):
        raise ValueError(f"{path} names {len(there)} classes, {source} have {len(names)}")
    for label, (before, now) in enumerate(zip(there, names, strict=True)):
        if before != now:
            raise ValueError(f"{path}: label {label} is {before!r}; in {source} it is {now!r}")
