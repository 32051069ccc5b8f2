"""Opens data sets on disk by name."""

from __future__ import annotations

import dataclasses
import os

from absl import logging

from slim.datasets import records
from slim.datasets.finding import find_files, get_class_names, get_info
from slim.datasets.picture_files import listed


@dataclasses.dataclass(frozen=True)
class Dataset:
    """One split of one data set on disk.

    Attributes:
      name: name of the data set, e.g. "mnist".
      split: name of the split, e.g. "train".
      files: its record files, sorted.
      counts: the number of records in each file.
      class_names: name of each class, by label.
      image_shape: (H, W, C) as stored; H and W are None if the images differ in size.
    """

    name: str
    split: str
    files: tuple[str, ...]
    counts: tuple[int, ...]
    class_names: tuple[str, ...]
    image_shape: tuple[int | None, int | None, int]

    @property
    def num_classes(self) -> int:
        """Number of classes, with the background if there is one."""
        return len(self.class_names)

    @property
    def num_examples(self) -> int:
        """Number of records in all files."""
        return sum(self.counts)


def get_dataset(name: str, split: str, data_dir: str) -> Dataset:
    """Finds a split of a data set in a folder, as one record file or as shards.

    Raises:
      ValueError: unknown data set or split, or its files are missing or damaged.
    """
    info = get_info(name)
    files = find_files(name, split, data_dir)
    counts = records.count_records(files)
    empty = [os.path.basename(f) for f, count in zip(files, counts, strict=True) if not count]
    if empty:
        logging.warning("%s: there are no records in %s", data_dir, listed(empty))
    return Dataset(
        name=name,
        split=split,
        files=files,
        counts=counts,
        class_names=get_class_names(name, data_dir),
        image_shape=info.image_shape,
    )
