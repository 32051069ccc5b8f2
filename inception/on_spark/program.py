"""Runs the suite's distributed programs on Spark: a function for `terngrad.spark.cluster.run`."""

from __future__ import annotations

import contextlib
import io
import numbers
import os
import runpy
import sys
import tempfile
from collections.abc import Sequence

from PIL import Image

from inception.flags.command_line import flags_of
from slim.conversion import record_files
from slim.datasets import records
from slim.datasets.records import ImageRecord
from terngrad.spark.context import Context
from terngrad.spark.feed import Feed

_ROWS = 1024
_CHANNELS = {"L": 1, "RGB": 3}


def run_program(arguments: Sequence[str], context: Context) -> None:
    """Runs a distributed program as one process of the cluster.

    Rows that Spark feeds become record files on the worker's machine, from which it trains as from
    any others: shuffled, for as many epochs as its flags say, and resumable. A row has `image`,
    the content of a PNG or JPEG file, and `label`.

    Args:
      arguments: the program's module, such as inception.mnist_distributed_train, and its flags,
        which override those of the context.
      context: the process' place in the cluster.

    Raises:
      ValueError: a row is not such a picture, or its label is no integer.
      SystemExit: the program ended with another status than 0.
    """
    module, *flags = arguments
    with contextlib.ExitStack() as stack:
        if context.feed and context.job_name == "worker":
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="terngrad_rows"))
            write_records(context.feed, folder)
            name = "dataset_dir" if "dataset_dir" in flags_of(module) else "data_dir"
            flags += [f"--{name}={folder}", "--split_data=False"]
        sys.argv = [module, *context.flags, *flags]  # the last one of a flag counts
        runpy.run_module(module, run_name="__main__", alter_sys=True)


def write_records(feed: Feed, folder: str) -> str:
    """Writes the rows as the training records of `folder`; returns the file's path."""
    (path,) = record_files.record_paths(folder, "", "train", 1)
    count = 0
    with records.record_writer(path) as writer:
        for batch in feed.batches(_ROWS):
            columns = (batch.column(name).to_pylist() for name in ("image", "label"))
            for image, label in zip(*columns, strict=True):
                writer.write(_record(image, label, count).serialize())
                count += 1
    records.store_counts({os.fspath(path): count})
    return path


def _record(content: bytes, label: int, row: int) -> ImageRecord:
    if isinstance(label, bool) or not isinstance(label, numbers.Integral):
        raise ValueError(f"row {row}: label is {label!r}; allowed are integers")
    try:
        with Image.open(io.BytesIO(content), formats=("PNG", "JPEG")) as image:
            channels, kind = _CHANNELS[image.mode], image.format.lower()
            return ImageRecord(content, kind, image.height, image.width, channels, int(label))
    except (Image.UnidentifiedImageError, KeyError):
        raise ValueError(f"row {row}: image is no grey or RGB picture in PNG or JPEG") from None
