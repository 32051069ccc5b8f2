"""Finds data sets on disk by name, without TensorFlow."""

from __future__ import annotations

import os
import re

from absl import logging

from slim.datasets import catalog, labels, mnist
from slim.datasets.dataset_info import DatasetInfo

DATASETS: dict[str, DatasetInfo] = {name: module.INFO for name, module in catalog.MODULES.items()}


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


def find_files(name: str, split: str, data_dir: str) -> tuple[str, ...]:
    """Returns the record files of a split in a folder: one, or its shards.

    Raises:
      ValueError: unknown data set or split, or its files are missing.
    """
    info = get_info(name)
    if split not in info.splits:
        allowed = ", ".join(info.splits)
        raise ValueError(f"data set {name} has no split {split!r}; allowed: {allowed}")
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
            f"make them with {info.command(data_dir)}{_hint(info, split, data_dir)}"
        )
    if len(totals) > 1:
        raise ValueError(
            f"{data_dir} holds {split} shards of {' and of '.join(totals)}; keep one set"
        )
    if len(shards) < int(totals[0]):
        logging.warning("%s holds %d of %s %s shards", data_dir, len(shards), totals[0], split)
    return tuple(os.path.join(data_dir, match[0]) for match in shards)


def _hint(info: DatasetInfo, split: str, folder: str) -> str:
    """Says which flags fit a folder that holds another data set of the same kind; "" if none."""
    alike = [o.name for o in DATASETS.values() if o.image_shape == info.image_shape]
    for other in alike:
        if os.path.isfile(os.path.join(folder, f"{split}-{other}.tfrecord")):
            return f"; it holds those of {other}: for these add --dataset_name={other}"
    original = mnist.find_published(folder) if info.name in mnist.NAMES else ""
    if original in ("", info.name):
        return ""
    return (
        f"; it holds the original files of {original}: for these add --source_dir={folder}, "
        f"and --dataset_name={original} in all programs"
    )
