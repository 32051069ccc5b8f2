"""Finds data sets on disk by name."""

from __future__ import annotations

import dataclasses
import os
import re

from absl import logging

from slim.datasets import catalog, labels, records
from slim.datasets.dataset_info import DatasetInfo

DATASETS: dict[str, DatasetInfo] = {name: module.INFO for name, module in catalog.MODULES.items()}


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


def get_info(name: str) -> DatasetInfo:
    """Returns the facts about a data set; ValueError lists the allowed names."""
    if name not in DATASETS:
        raise ValueError(f"unknown data set {name!r}; allowed: {', '.join(DATASETS)}")
    return DATASETS[name]


def get_class_names(name: str, data_dir: str) -> tuple[str, ...]:
    """Returns the names of the classes of a folder's records, by label.

    labels.txt in the folder has them. A data set with published classes may be without the file.

    Raises:
      ValueError: unknown data set, or labels.txt is missing or malformed.
    """
    info = get_info(name)
    if info.class_names is not None and not labels.exist(data_dir):
        return tuple(info.class_names)
    if not os.path.isdir(data_dir):
        raise ValueError(f"{data_dir} is no folder; make it with {info.command(data_dir)}")
    return labels.read_labels(data_dir)


def get_dataset(name: str, split: str, data_dir: str) -> Dataset:
    """Finds a split of a data set in a folder, as one record file or as shards.

    Raises:
      ValueError: unknown data set or split, or its files are missing or damaged.
    """
    info = get_info(name)
    if split not in info.splits:
        allowed = ", ".join(info.splits)
        raise ValueError(f"data set {name} has no split {split!r}; allowed: {allowed}")
    files = _find_files(info, split, data_dir)
    return Dataset(
        name=name,
        split=split,
        files=files,
        counts=records.count_records(files),
        class_names=get_class_names(name, data_dir),
        image_shape=info.image_shape,
    )


def _find_files(info: DatasetInfo, split: str, data_dir: str) -> tuple[str, ...]:
    single = os.path.join(data_dir, f"{split}-{info.name}.tfrecord")
    if os.path.isfile(single):
        return (single,)
    present = sorted(os.listdir(data_dir)) if os.path.isdir(data_dir) else []
    pattern = re.compile(rf"{split}-\d{{5}}-of-(\d{{5}})")
    shards = [match for match in map(pattern.fullmatch, present) if match]
    totals = sorted({match[1] for match in shards})
    if not totals:
        raise ValueError(
            f"{data_dir} holds neither {split}-{info.name}.tfrecord nor {split}-?????-of-?????; "
            f"make them with {info.command(data_dir)}"
        )
    if len(totals) > 1:
        raise ValueError(
            f"{data_dir} holds {split} shards of {' and of '.join(totals)}; keep one set"
        )
    if len(shards) < int(totals[0]):
        logging.warning("%s holds %d of %s %s shards", data_dir, len(shards), totals[0], split)
    return tuple(os.path.join(data_dir, match[0]) for match in shards)
