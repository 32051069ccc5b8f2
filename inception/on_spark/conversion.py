"""Spark executors write record files, one per task, with the same bytes as on one machine."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.progress import Progress

from inception.on_spark.session import open_session
from slim.conversion import record_files
from slim.conversion import shard_writer as local
from slim.conversion.options import DEFAULT, JPEG, Form, Options
from slim.conversion.record_files import WriteShards
from slim.conversion.shard_writer import Shard
from slim.conversion.sources import PictureSource, Source
from slim.datasets import records
from slim.datasets.picture_files import Picture, Pictures
from terngrad.spark.jobs import reason

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame, SparkSession

_USERS = "^(ValueError|OSError): "  # errors that a user can fix


@contextlib.contextmanager
def shard_writer(master: str) -> Iterator[WriteShards]:
    """Yields a function that writes record files, by a Spark master or, with "", on this machine.

    Raises:
      ValueError: Spark cannot be reached.
    """
    if not master:
        yield local.write_shards
        return
    session = open_session(master, "conversion to record files")
    try:
        yield functools.partial(_write, session)
    finally:
        session.stop()


def convert_frame(
    frame: DataFrame,
    folder: str,
    split: str,
    class_names: Sequence[str],
    *,
    num_shards: int = 1,
    form: Form = JPEG,
    options: Options = DEFAULT,
) -> None:
    """Writes the pictures of a DataFrame as the record files of a split.

    The files equal those that one machine makes of the same pictures in the order of the rows. An
    executor holds the rows of one file at a time in memory.

    Args:
      frame: has `image`, the content of a picture file, `label`, and perhaps `filename`.
      folder: folder of the record files, which all executors share.
      split: "train", "validation" or "test".
      class_names: name of each class, by label; label 0 is the background.
      num_shards: number of record files.
      form: how pictures are stored.
      options: how to convert.

    Raises:
      ValueError: a picture is broken or a label has no name, or see `record_files.run`.
    """
    names = "filename" if "filename" in frame.columns else "'' AS filename"
    rows = frame.selectExpr("image", "label", names)
    source = _Rows(*rows.selectExpr("count(*)", "sum(xxhash64(*) % 1000003)").first(), form)
    write = functools.partial(_write_rows, rows.rdd.zipWithIndex(), class_names, form)
    job = record_files.job(folder, "", split, source, num_shards, "num_shards")
    record_files.run(folder, [job], class_names, options, write)


class _Rows:
    """The source of rows, as the driver knows it; see `sources.Source`."""

    at_once = 1

    def __init__(self, count: int, digest: int, form: Form) -> None:
        self._count = count
        self.description = f"{count} rows ({digest}) as {form}"

    def __len__(self) -> int:
        return self._count


def _write_rows(
    rows: RDD,
    class_names: Sequence[str],
    form: Form,
    shares: Mapping[str, Sequence[int]],
    source: Source,
    options: Options,
    bar: Progress,
    set_broken: Callable[[str, list[str]], None],
) -> None:
    """See `slim.conversion.shard_writer.write_shards`; `rows` are pairs of a row and its index."""
    del source  # knows only how many there are
    if not shares:
        return
    total = max(share.step for share in shares.values())
    paths = {share.start: path for path, share in shares.items()}
    place = {start: i for i, start in enumerate(paths)}

    def written(index: int, found: Iterator) -> Iterator[Shard]:
        ordered = sorted((number, row) for _, (number, row) in found)
        for _, row in ordered:
            if row.label not in range(len(class_names)):
                raise ValueError(f"label {row.label}; allowed are 0 to {len(class_names) - 1}")
        pictures = [Picture(r.filename, r.label, content=bytes(r.image)) for _, r in ordered]
        path = list(paths.values())[index]
        part = PictureSource(Pictures(pictures, class_names), form)
        return _written({path: range(len(pictures))}, part, options)

    by_shard = rows.map(lambda pair: (pair[1] % total, (pair[1], pair[0])))
    wanted = by_shard.filter(lambda pair: pair[0] in place)
    parts = wanted.partitionBy(len(place), lambda shard: place[shard])
    _collect(parts.mapPartitionsWithIndex(written), len(paths), bar, set_broken)


def _write(
    session: SparkSession,
    shares: Mapping[str, Sequence[int]],
    source: Source,
    options: Options,
    bar: Progress,
    set_broken: Callable[[str, list[str]], None],
) -> None:
    """See `slim.conversion.shard_writer.write_shards`."""
    if not shares:
        return
    jobs = [(path, source.part(share)) for path, share in shares.items()]
    tasks = session.sparkContext.parallelize(jobs, len(jobs))
    _collect(tasks.map(functools.partial(_write_one, options)), len(jobs), bar, set_broken)


def _collect(
    shards: RDD, count: int, bar: Progress, set_broken: Callable[[str, list[str]], None]
) -> None:
    """Lets executors write files, and stores what they report.

    Raises:
      ValueError: a picture is broken.
    """
    task = bar.add_task(f"writing {count} files", total=count)
    try:
        written = shards.collect()
    except Exception as error:  # of pyspark, with the whole traceback of the executor
        raise ValueError(re.sub(_USERS, "", reason(error))) from error
    for shard in written:
        set_broken(os.path.basename(shard.path), shard.broken)
        local.print_warnings(shard)
    records.store_counts({shard.path: shard.count for shard in written})
    bar.advance(task, len(written))


def _write_one(options: Options, job: tuple[str, Source]) -> Shard:
    path, source = job
    (shard,) = _written({path: range(len(source))}, source, options)
    return shard


def _written(
    shares: Mapping[str, Sequence[int]], source: Source, options: Options
) -> Iterator[Shard]:
    """Writes an executor's record file; the driver may have been stopped when it has its name."""
    (path,) = shares
    leave_broken = functools.partial(record_files.leave_broken, os.path.dirname(path))
    return local.written_shards(shares, source, options, set_broken=leave_broken)
