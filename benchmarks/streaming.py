"""One reading of shards in a process of its own, for benchmarks/streaming_benchmark.py."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from slim import input_pipeline
from slim.datasets import images, records
from slim.datasets.dataset_factory import get_dataset
from slim.preprocessing.preprocessing_factory import get_preprocessing

_SIDE = 128  # pixels
_DISTINCT = 64
_BATCH_SIZE = 32
_IMAGE_SIZE = 64
_MEGA = 1024.0  # kilobytes in a megabyte


class Reading(NamedTuple):
    """What a process found.

    Attributes:
      images: records in the data set.
      start_step: batches that were skipped.
      first_batch_secs: from the call for batches to the first of them.
      images_per_sec: speed of the batches after the first.
      before_mb: the most memory that was resident before the call, in megabytes.
      peak_mb: the most memory that was resident until the end.
    """

    images: int
    start_step: int
    first_batch_secs: float
    images_per_sec: float
    before_mb: float
    peak_mb: float


def write_shards(folder: str, num_shards: int, per_shard: int) -> None:
    """Writes shards of JPEGs of about 10 kB as the data set `images` with two classes."""
    os.makedirs(folder)
    made = [record.serialize() for record in _records()]
    counts = {}
    for shard in range(num_shards):
        path = os.path.join(folder, f"train-{shard:05d}-of-{num_shards:05d}")
        with records.record_writer(path) as writer:
            for place in range(per_shard):
                writer.write(made[(shard * per_shard + place) % _DISTINCT])
        counts[path] = per_shard
    records.store_counts(counts)
    with open(os.path.join(folder, "labels.txt"), "w", encoding="utf-8") as file:
        file.write("1:even\n2:odd\n")


def read(folder: str, start: float, shuffle_pool: int, num_batches: int) -> Reading:
    """Reads batches, as a training does that begins at a share `start` of the epoch."""
    dataset = get_dataset(images.INFO.name, "train", folder)
    start_step = int(start * dataset.num_examples / _BATCH_SIZE)
    before_mb = _peak_mb()
    begin = time.perf_counter()
    batches = iter(
        input_pipeline.training_batches(
            dataset,
            get_preprocessing("inception", is_training=True),
            image_size=_IMAGE_SIZE,
            batch_size=_BATCH_SIZE,
            seed=1,
            start_step=start_step,
            shuffle_pool=shuffle_pool,
        )
    )
    next(batches)
    first = time.perf_counter()
    for _ in range(num_batches):
        next(batches)
    speed = num_batches * _BATCH_SIZE / (time.perf_counter() - first)
    return Reading(dataset.num_examples, start_step, first - begin, speed, before_mb, _peak_mb())


def _records() -> Iterator[records.ImageRecord]:
    rng = np.random.default_rng(0)
    for number in range(_DISTINCT):
        coarse = rng.integers(0, 256, (1, _SIDE // 4, _SIDE // 4, 3)).astype(np.float32)
        pixels = tf.cast(tf.image.resize(coarse, [_SIDE, _SIDE])[0], tf.uint8)
        jpeg = tf.io.encode_jpeg(pixels, quality=95).numpy()
        yield records.ImageRecord(jpeg, "jpeg", _SIDE, _SIDE, 3, label=1 + number % 2)


def _peak_mb() -> float:
    # Not getrusage: its maximum begins with that of the process that started this one.
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmHWM:")]
    return float(line.split()[1]) / _MEGA
