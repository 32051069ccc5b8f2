"""Converts a data set's original files to record files."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from slim.datasets import cifar10, files, mnist, records
from slim.datasets.dataset_info import DatasetInfo

_SOURCES = {module.INFO.name: module for module in (mnist, cifar10)}


def convert(
    name: str,
    dataset_dir: str,
    *,
    source_dir: str | None = None,
    num_shards: int | None = None,
    overwrite: bool = False,
) -> None:
    """Converts a data set; all its sources are read and checked before anything is written.

    Args:
      name: "mnist" or "cifar10".
      dataset_dir: folder for the record files and labels.txt.
      source_dir: folder that has the original files; None downloads to `dataset_dir`/download.
      num_shards: number of record files for training; None makes one, named after the data set.
      overwrite: whether to replace record files that exist.

    Raises:
      ValueError: the sources are missing or damaged, or the download failed.
    """
    source = _SOURCES[name]
    paths = {
        split: record_paths(dataset_dir, name, split, num_shards) for split in source.INFO.splits
    }
    every = list(itertools.chain(*paths.values()))
    kept = {path for path in every if os.path.exists(path) and not overwrite}
    if kept:
        print(
            f"{dataset_dir} keeps its {len(kept)} existing record files; --overwrite replaces them."
        )
    if len(kept) == len(every):
        return
    splits = source.load(source_dir or source.download(os.path.join(dataset_dir, "download")))
    shares = {split: spread(len(splits[split][1]), paths[split]) for split in splits}
    os.makedirs(dataset_dir, exist_ok=True)
    write_labels(dataset_dir, source.INFO)
    for split, (images, labels) in splits.items():
        missing = {path: share for path, share in shares[split].items() if path not in kept}
        if missing:
            write_records(missing, images, labels, source.INFO)
            print(f"Finished writing all {sum(map(len, missing.values()))} images in data set.")


def record_paths(folder: str, name: str, split: str, num_shards: int | None) -> list[str]:
    """Returns the record files of a split: one, or `num_shards` for training."""
    if num_shards is None:
        return [os.path.join(folder, f"{split}-{name}.tfrecord")]
    total = num_shards if split == "train" else 1
    return [os.path.join(folder, f"{split}-{index:05d}-of-{total:05d}") for index in range(total)]


def spread(num_images: int, paths: Sequence[str]) -> dict[str, np.ndarray]:
    """Assigns images 0, 1, ... to the files in turn, so that sorted images are mixed."""
    if num_images < len(paths):
        raise ValueError(
            f"{num_images} images do not fill {len(paths)} shards; --num_shards is too large"
        )
    return {path: np.arange(i, num_images, len(paths)) for i, path in enumerate(paths)}


def write_records(
    shares: Mapping[str, np.ndarray], images: np.ndarray, labels: np.ndarray, info: DatasetInfo
) -> None:
    """Writes record files with images as PNG; a file gets its name when it is complete.

    Args:
      shares: indices of each file's images, by path.
      images: uint8 [N, H, W, C].
      labels: int64 [N].
      info: the data set, for the names of its classes.
    """
    order = np.concatenate(list(shares.values()))
    encoded = _encode_png(images[order], info.png_compression)
    with files.progress_bar() as bar:
        task = bar.add_task(f"writing {len(order)} images", total=len(order))
        for path, share in shares.items():
            with records.record_writer(path) as writer:
                # The share comes first: zip would take one image too many from the stream.
                for place, png in zip(share, encoded, strict=False):
                    label = int(labels[place])
                    text = info.class_names[label]
                    record = records.ImageRecord(png, "png", *images.shape[1:], label, text)
                    writer.write(record.serialize())
                    bar.advance(task)
    records.store_counts({path: len(share) for path, share in shares.items()})


def write_labels(folder: str, info: DatasetInfo) -> None:
    """Writes labels.txt with a line id:name for each class."""
    with files.replacing_text(os.path.join(folder, "labels.txt")) as file:
        file.writelines(f"{label}:{name}\n" for label, name in enumerate(info.class_names))


def _encode_png(images: np.ndarray, compression: int) -> Iterator[bytes]:
    """Encodes in the order of the images, on all cores."""
    encoded = tf.data.Dataset.from_tensor_slices(images).map(
        lambda image: tf.io.encode_png(image, compression), num_parallel_calls=os.cpu_count()
    )
    for batch in encoded.batch(256).as_numpy_iterator():
        yield from batch
