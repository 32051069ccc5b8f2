"""Converts a data set's original files to record files, by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from slim.conversion import record_files, shard_writer
from slim.conversion.options import DEFAULT, JPEG, Form, Options
from slim.conversion.record_files import WriteShards, record_paths
from slim.conversion.sources import ArraySource, PictureSource, Source
from slim.datasets import dataset_factory
from slim.datasets.dataset_info import DatasetInfo, Splits
from slim.datasets.picture_files import Pictures

_SHARDS_FLAG = "--{split}_shards"


def convert(
    name: str,
    dataset_dir: str,
    *,
    source_dir: str | None = None,
    num_shards: Mapping[str, int] | None = None,
    shards_flag: str = _SHARDS_FLAG,
    form: Form = JPEG,
    options: Options = DEFAULT,
    download: Callable[[str], str] | None = None,
) -> None:
    """Converts a data set; its sources are found and checked before anything is written.

    Args:
      name: its name in the catalog.
      dataset_dir: folder for the record files and labels.txt.
      source_dir: folder that has the original files; None downloads to `dataset_dir`/download.
      num_shards: see `write`.
      shards_flag: see `write`.
      form: how pictures are stored.
      options: how to convert.
      download: gets the original files into a folder, and returns it; None = as the data set does.

    Raises:
      ValueError: the sources are missing or damaged, the download failed, or see
        `record_files.run`.
    """
    module = dataset_factory.MODULES[name]

    def paths() -> Iterator[str]:
        for split in module.INFO.splits:
            shards = _shards(module.INFO, split, num_shards)
            yield from record_paths(dataset_dir, name, split, shards)

    if source_dir is None and all(map(os.path.exists, paths())) and not options.overwrite:
        record_files.check_form(dataset_dir, module.INFO.splits, form)
        found = list(paths())
        record_files.print_summary(dataset_dir, found, len(found))  # without a download
        return
    download = download or module.download
    splits = module.load(source_dir or download(os.path.join(dataset_dir, "download")))
    write(
        module.INFO,
        splits,
        dataset_dir,
        num_shards=num_shards,
        shards_flag=shards_flag,
        form=form,
        options=options,
    )


def write(
    info: DatasetInfo,
    splits: Splits,
    folder: str,
    *,
    num_shards: Mapping[str, int] | None = None,
    shards_flag: str = _SHARDS_FLAG,
    form: Form = JPEG,
    options: Options = DEFAULT,
    write_shards: WriteShards = shard_writer.write_shards,
) -> None:
    """Writes the record files of a data set; see `record_files.run`.

    Args:
      info: the data set.
      splits: its images.
      folder: folder for the record files and labels.txt.
      num_shards: number of record files of some splits; others have the number in `info`, or one
        for each image if that is less.
      shards_flag: the flag that sets it, with {split} for the split, for the error.
      form: how pictures are stored.
      options: how to convert.
      write_shards: see `record_files.run`.
    """
    jobs = []
    for split, images in splits.items():
        source = _source(images, info, form)
        shards = _shards(info, split, num_shards, len(source))
        flag = f"flag {shards_flag.format(split=split)}"
        jobs.append(record_files.job(folder, info.name, split, source, shards, flag))
    first = next(iter(splits.values()))
    class_names = first.class_names if isinstance(first, Pictures) else info.class_names
    record_files.run(folder, jobs, class_names, options, write_shards)


def _shards(
    info: DatasetInfo, split: str, asked: Mapping[str, int] | None, num_images: int | None = None
) -> int | None:
    """Returns the number of a split's record files; None = one, which is named after the data set.

    Without `num_images` it is that of a large collection.
    """
    if asked and split in asked:
        return asked[split]
    own = (info.num_shards or {}).get(split)
    return own and min(own, num_images or own)


def _source(
    images: tuple[np.ndarray, np.ndarray] | Pictures, info: DatasetInfo, form: Form
) -> Source:
    if isinstance(images, Pictures):
        return PictureSource(images, form)
    return ArraySource(*images, info)
