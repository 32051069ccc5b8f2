"""The data sets by name: their modules, and their files on disk.

TensorFlow is loaded only to open a data set.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import re
from collections.abc import Iterable, Sequence
from types import ModuleType

from absl import logging

from slim.datasets import cifar10, dataset_info, fashion_mnist, flowers, imagenet, images, mnist
from slim.datasets.dataset_info import DatasetInfo
from slim.datasets.picture_files import listed

# A module has INFO, `download` and `load`; docs/extending.md says what they do.
MODULES: dict[str, ModuleType] = {
    module.INFO.name: module
    for module in (mnist, fashion_mnist, cifar10, imagenet, flowers, images)
}
DATASETS: dict[str, DatasetInfo] = {name: module.INFO for name, module in MODULES.items()}

_SHARD = r"\d{5}-of-\d{5}"


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
    """Returns the properties of a data set; ValueError lists the allowed names."""
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
    if info.class_names is not None and not dataset_info.exist(data_dir):
        return tuple(info.class_names)
    if not os.path.isdir(data_dir):
        raise ValueError(f"{data_dir} is no folder; make it with {info.command(data_dir)}")
    return dataset_info.read_labels(data_dir)


def get_dataset(name: str, split: str, data_dir: str) -> Dataset:
    """Finds a split of a data set in a folder, as one record file or as shards.

    Raises:
      ValueError: unknown data set or split, or its files are missing or damaged.
    """
    from slim.datasets import records  # loads TensorFlow

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


def find_files(name: str, split: str, data_dir: str) -> tuple[str, ...]:
    """Returns the record files of a split in a folder: one, or its shards.

    Raises:
      ValueError: unknown data set or split, or its files are missing.
    """
    info = get_info(name)
    if split not in info.splits:
        allowed = ", ".join(info.splits)
        raise ValueError(f"data set {name} has no split {split!r}; allowed: {allowed}")
    present = sorted(os.listdir(data_dir)) if os.path.isdir(data_dir) else []
    found = _sets(info.name, split, present)
    if not found:
        raise ValueError(
            f"{data_dir} holds neither {split}-{info.name}.tfrecord nor {split}-?????-of-?????; "
            f"make them with {info.command(data_dir)}{_hint(info, split, data_dir, present)}"
        )
    if len(found) > 1:
        raise ValueError(f"{data_dir} holds {' and '.join(sorted(found))}; keep one set")
    ((pattern, shards),) = found.items()
    if len(shards) < (expected := _num_shards(pattern)):
        logging.warning("%s holds %d of %d %s shards", data_dir, len(shards), expected, split)
    return tuple(os.path.join(data_dir, name) for name in shards)


def _sets(name: str, split: str, present: Iterable[str]) -> dict[str, list[str]]:
    """Returns the record files of a split among files: by their common pattern, each set's names.

    Besides our names it knows those of TF-Slim's converters.
    """
    pattern = re.compile(
        rf"({split}-(?:{_SHARD}|{name}\.tfrecord)|{name}_{split}(?:_{_SHARD})?\.tfrecord)"
    )
    found = collections.defaultdict(list)
    for file in filter(pattern.fullmatch, present):
        found[re.sub(r"\d{5}-of-", "?????-of-", file)].append(file)
    return dict(found)


def _num_shards(pattern: str) -> int:
    """Returns how many files a set should have, given its pattern."""
    total = re.search(r"-of-(\d{5})", pattern)
    return int(total[1]) if total else 1


def _hint(info: DatasetInfo, split: str, folder: str, present: Sequence[str]) -> str:
    """Returns a hint how to use the files that a folder holds instead; "" if there are none."""
    alike = [o.name for o in DATASETS.values() if o.image_shape == info.image_shape]
    for other in alike:
        if _sets(other, split, present):
            return f"; it holds those of {other}: for these add --dataset_name={other}"
    original = mnist.find_published(folder) if info.name in mnist.NAMES else ""
    if original not in ("", info.name):
        return (
            f"; it holds the original files of {original}: for these add --source_dir={folder}, "
            f"and --dataset_name={original} in all programs"
        )
    similar = [n for n in present if split in n and re.search(rf"{_SHARD}|\.tfrecords?$", n)]
    if not similar:
        return ""
    shard = re.search(_SHARD, similar[0])
    wanted = f"{split}-{shard[0]}" if shard else f"{split}-{info.name}.tfrecord"
    return f"; if {listed(similar)} holds them, rename: {similar[0]} to {wanted}"
