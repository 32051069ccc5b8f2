"""Finds data sets on disk by name."""

from __future__ import annotations

import dataclasses
import os
import re

from absl import logging

from slim.datasets import cifar10, mnist, records
from slim.datasets.dataset_info import DatasetInfo

DATASETS: dict[str, DatasetInfo] = {module.INFO.name: module.INFO for module in (mnist, cifar10)}


@dataclasses.dataclass(frozen=True)
class Dataset:
    """One split of one data set on disk.

    Attributes:
      name: name of the data set, e.g. "mnist".
      split: name of the split, e.g. "train".
      files: its record files, sorted.
      counts: the number of records in each file.
      num_classes: number of classes.
      image_shape: (H, W, C) as stored.
    """

    name: str
    split: str
    files: tuple[str, ...]
    counts: tuple[int, ...]
    num_classes: int
    image_shape: tuple[int, int, int]

    @property
    def num_examples(self) -> int:
        """Number of records in all files."""
        return sum(self.counts)


def get_info(name: str) -> DatasetInfo:
    """Returns the facts about a data set; ValueError lists the allowed names."""
    if name not in DATASETS:
        raise ValueError(f"unknown data set {name!r}; allowed: {', '.join(DATASETS)}")
    return DATASETS[name]


def get_dataset(name: str, split: str, data_dir: str) -> Dataset:
    """Finds a split of a data set in a folder, as one record file or as shards.

    Raises:
      ValueError: unknown data set or split, or its files are missing or damaged.
    """
    info = get_info(name)
    if split not in info.splits:
        allowed = ", ".join(info.splits)
        raise ValueError(f"data set {name} has no split {split!r}; allowed: {allowed}")
    files = _find_files(name, split, data_dir)
    return Dataset(
        name=name,
        split=split,
        files=files,
        counts=records.count_records(files),
        num_classes=len(info.class_names),
        image_shape=info.image_shape,
    )


def _find_files(name: str, split: str, data_dir: str) -> tuple[str, ...]:
    single = os.path.join(data_dir, f"{split}-{name}.tfrecord")
    if os.path.isfile(single):
        return (single,)
    present = sorted(os.listdir(data_dir)) if os.path.isdir(data_dir) else []
    pattern = re.compile(rf"{split}-\d{{5}}-of-(\d{{5}})")
    shards = [match for match in map(pattern.fullmatch, present) if match]
    totals = sorted({match[1] for match in shards})
    if not totals:
        raise ValueError(
            f"{data_dir} holds neither {split}-{name}.tfrecord nor {split}-?????-of-?????; "
            "make them with python -m slim.download_and_convert_data "
            f"--dataset_name={name} --dataset_dir={data_dir}"
        )
    if len(totals) > 1:
        raise ValueError(
            f"{data_dir} holds {split} shards of {' and of '.join(totals)}; keep one set"
        )
    if len(shards) < int(totals[0]):
        logging.warning("%s holds %d of %s %s shards", data_dir, len(shards), totals[0], split)
    return tuple(os.path.join(data_dir, match[0]) for match in shards)
