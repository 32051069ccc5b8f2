"""Runs the suite's distributed programs on Spark: a function for `terngrad.spark.cluster.run`."""

from __future__ import annotations

import io
import numbers
import os
import runpy
import sys
import tempfile
from collections.abc import Sequence

from PIL import Image

from inception import app
from inception.flags.command_line import flags_of, positional_of
from inception.flags.table import refuse
from slim.conversion import record_files
from slim.datasets import dataset_factory, dataset_info, records
from slim.datasets.records import ImageRecord
from terngrad.spark.context import Context
from terngrad.spark.feed import Feed

_ROWS = 1024
_CHANNELS = {"L": 1, "RGB": 3}


def run_program(arguments: Sequence[str], context: Context) -> None:
    """Runs a distributed program as one process of the cluster.

    Rows that Spark feeds become record files on the worker's machine, from which it trains as from
    any others: shuffled, for as many epochs as its flags say, and resumable. A row has `image`,
    the content of a PNG or JPEG file, and `label`. If the flags name a folder of records that has
    labels.txt, that names the classes.

    Args:
      arguments: the program's module, such as inception.mnist_distributed_train, and its flags,
        which override those of the context.
      context: the process' place in the cluster.

    Raises:
      ValueError: a row is not such a picture, its label is no integer, or only labels.txt could
        name the classes of the data set, and there is none.
      SystemExit: the program ended with another status than 0.
    """
    module, *flags = arguments
    if context.feed and context.job_name == "worker":
        folder = tempfile.mkdtemp(dir=context.folder)  # deleted however this process ends
        name = _name_classes(module, flags, folder)
        write_records(context.feed, folder)
        flags += [f"--{name}={folder}", "--split_data=False"]
    sys.argv = [module, *context.flags, *flags]  # the last one of a flag counts
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _name_classes(module: str, arguments: Sequence[str], folder: str) -> str:
    """Writes the labels.txt of the user's folder to `folder`; returns the flag of such folders.

    Raises:
      ValueError: there is none, but only that names the classes of the data set.
    """
    values = flags_of(module)
    app.parse(values, arguments, positional_of(module))
    name = "dataset_dir" if "dataset_dir" in values else "data_dir"
    given = values[name].value if values[name].present else ""
    info = dataset_factory.DATASETS.get(values.dataset_name)  # the program refuses other names
    if given and dataset_info.exist(given):
        dataset_info.write_labels(folder, dataset_info.read_labels(given))
    elif info and info.class_names is None:
        why = f"must name a folder with labels.txt: data set {info.name} has its classes there"
        raise refuse(name, given, why)
    return name


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
