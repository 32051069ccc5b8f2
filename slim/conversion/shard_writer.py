"""Writes record files on all cores; the result does not depend on the number of threads."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import tensorflow as tf
from rich.progress import Progress

from slim.conversion.options import Options
from slim.conversion.sources import Source
from slim.datasets import records

_T = TypeVar("_T")
_R = TypeVar("_R")

_CHUNKS_AHEAD = 4  # read by each thread, so that none waits while a record is written


def write_shards(
    shares: Mapping[str, Sequence[int]],
    source: Source,
    options: Options,
    bar: Progress,
    set_broken: Callable[[str, list[str]], None],
) -> None:
    """Writes record files; each gets its name and its stored count as soon as it is complete.

    Args:
      shares: indices of each file's images in the source, by path.
      source: the images.
      options: how to convert.
      bar: shows how many images are written.
      set_broken: takes the name of each file and a line for each image that was left out, before
        the file gets its name: whoever stops in between cannot lose the lines.
    """
    total = sum(map(len, shares.values()))
    task = bar.add_task(f"writing {total} images", total=total)
    advance = functools.partial(bar.advance, task)
    for shard in written_shards(shares, source, options, advance, set_broken):
        records.store_counts({shard.path: shard.count})
        print_warnings(shard)


class Shard(NamedTuple):
    """A complete record file.

    Attributes:
      path: its path.
      count: number of its records.
      broken: a line for each image that was left out.
      warnings: lines about images with faults, in this file or read ahead for later ones.
    """

    path: str
    count: int
    broken: list[str]
    warnings: list[str]


def print_warnings(shard: Shard) -> None:
    """Prints the lines about images with faults."""
    for line in shard.warnings:
        print(line, flush=True)


def written_shards(
    shares: Mapping[str, Sequence[int]],
    source: Source,
    options: Options,
    report_written: Callable[[int], None] = lambda done: None,
    set_broken: Callable[[str, list[str]], None] = lambda name, lines: None,
) -> Iterator[Shard]:
    """Writes record files and yields each when it has its name; see `write_shards`.

    `report_written` takes the number of images written since its last call.
    """
    warnings: list[str] = []
    read = functools.partial(_read, source, options.skip_broken, warnings.append)
    num_threads = options.num_threads or len(os.sched_getaffinity(0))
    with concurrent.futures.ThreadPoolExecutor(num_threads) as pool:
        chunks = (chunk for share in shares.values() for chunk in _chunks(share, source.at_once))
        results = _in_order(pool, read, chunks, _CHUNKS_AHEAD * num_threads)
        for path, share in shares.items():
            count, broken = 0, []
            with _naming(path), records.record_writer(path) as writer:
                for chunk in _chunks(share, source.at_once):
                    for record in next(results):
                        if isinstance(record, str):
                            broken.append(record)
                        else:
                            writer.write(record)
                            count += 1
                    report_written(len(chunk))
                set_broken(os.path.basename(path), broken)
            found = list(warnings)
            del warnings[: len(found)]  # threads may have added others
            yield Shard(path, count, broken, found)


def _read(
    source: Source, skip_broken: bool, warn: Callable[[str], None], indices: Sequence[int]
) -> list[bytes | str]:
    """Returns the serialized records of some images, or why an image is broken."""
    try:
        return [record.serialize() for record in source.records(indices, warn)]
    except ValueError as error:
        if not skip_broken:
            raise ValueError(f"{error}; --skip_broken leaves such pictures out") from None
        if len(indices) == 1:
            return [str(error)]
    return [_read(source, skip_broken, warn, [index])[0] for index in indices]


def _chunks(share: Sequence[int], at_once: int) -> Iterator[Sequence[int]]:
    return (share[first : first + at_once] for first in range(0, len(share), at_once))


def _in_order(
    pool: concurrent.futures.Executor,
    function: Callable[[_T], _R],
    arguments: Iterable[_T],
    num_ahead: int,
) -> Iterator[_R]:
    """Yields the function's results in order, at most `num_ahead` of which wait in memory."""
    waiting: collections.deque[concurrent.futures.Future[_R]] = collections.deque()
    for argument in arguments:
        waiting.append(pool.submit(function, argument))
        if len(waiting) == num_ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Turns TensorFlow's errors about a file that cannot be written into an OSError."""
    try:
        yield
    except tf.errors.OpError as error:
        # After the name of a temporary file.
        reason = error.message.partition("\n")[0].rpartition("; ")[2] or str(error.code)
        raise OSError(f"{path}: cannot be written ({reason})") from None
