"""Makes a folder of record files from any source of images.

A conversion that was stopped goes on with the record files that are missing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from rich.progress import Progress

from slim.conversion.note import ConversionNote
from slim.conversion.options import Options
from slim.conversion.sources import Source
from slim.datasets import dataset_info, files, records

_BROKEN_FILE = "broken.txt"

WriteShards = Callable[
    [Mapping[str, Sequence[int]], Source, Options, Progress, Callable[[str, list[str]], None]], None
]


@dataclasses.dataclass(frozen=True)
class Job:
    """One split: where its images come from and where they go.

    Attributes:
      split: its name.
      source: its images.
      paths: its record files.
    """

    split: str
    source: Source
    paths: Sequence[str]

    def __post_init__(self) -> None:
        """Raises ValueError if a record file would stay empty."""
        if len(self.source) < len(self.paths):
            raise ValueError(
                f"{len(self.source)} {self.split} images do not fill {len(self.paths)} shards; "
                f"ask for at most {len(self.source)}"
            )

    def shares(self) -> dict[str, range]:
        """Deals images 0, 1, ... to the files in turn, so that sorted images are mixed."""
        total, count = len(self.source), len(self.paths)
        return {path: range(first, total, count) for first, path in enumerate(self.paths)}


def record_paths(folder: str, name: str, split: str, num_shards: int | None) -> list[str]:
    """Returns the record files of a split: `num_shards`, or one named after the data set."""
    if num_shards is None:
        return [os.path.join(folder, f"{split}-{name}.tfrecord")]
    shards = range(num_shards)
    return [os.path.join(folder, f"{split}-{shard:05d}-of-{num_shards:05d}") for shard in shards]


def run(
    folder: str,
    jobs: Sequence[Job],
    class_names: Sequence[str],
    options: Options,
    write: WriteShards,
) -> None:
    """Writes the missing record files of some splits, their counts, and labels.txt.

    Args:
      folder: folder of the record files; it is made.
      jobs: the splits.
      class_names: name of each class, by label.
      options: how to convert.
      write: writes the files.

    Raises:
      ValueError: an image is broken, or the folder has record files that were made from other
        images, in another way, or in another number, or another process converts into it.
      OSError: a file cannot be written.
    """
    os.makedirs(folder, exist_ok=True)
    with _alone_in(folder):
        _run(folder, jobs, class_names, options, write)


def _run(
    folder: str,
    jobs: Sequence[Job],
    class_names: Sequence[str],
    options: Options,
    write: WriteShards,
) -> None:
    expected = [path for job in jobs for path in job.paths]
    old = {path for job in jobs for path in existing(folder, job.split)}
    note = _checked_note(folder, jobs, class_names, options)
    if options.overwrite:
        _remove([*old, os.path.join(folder, _BROKEN_FILE)])
    elif others := sorted(old.difference(expected)):
        raise ValueError(
            f"{others[0]} belongs to another set of record files; "
            "name another folder, or replace the old records with --overwrite"
        )
    _remove(_unfinished(folder))
    kept = {path for path in expected if os.path.exists(path)}
    if kept and not note.splits():  # records of unknown origin keep their classes
        dataset_info.check_labels(folder, class_names, "the images")
    dataset_info.write_labels(folder, class_names)
    with _ignoring_warnings(), files.progress_bar() as bar:
        for job in jobs:
            note.start(job.split, job.source.description, class_names)
            set_broken = functools.partial(note.set_broken, job.split)
            missing = {path: share for path, share in job.shares().items() if path not in kept}
            write(missing, job.source, options, bar, set_broken)
    tell_end(folder, expected, len(kept))


@contextlib.contextmanager
def _alone_in(folder: str) -> Iterator[None]:
    """Locks a folder; the system releases the lock of a killed process."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{folder}: another conversion writes there") from None
        yield
    finally:
        os.close(descriptor)


def tell_end(folder: str, paths: Sequence[str], num_kept: int) -> None:
    """Prints what a conversion has made, and lists broken images in broken.txt.

    Args:
      folder: folder of the record files.
      paths: all record files.
      num_kept: how many of them were there before.

    Raises:
      ValueError: there is no image in them, or one of them is damaged.
    """
    if num_kept:
        print(f"{folder} keeps its {num_kept} existing record files; --overwrite replaces them.")
    if broken := ConversionNote(folder).broken():
        path = os.path.join(folder, _BROKEN_FILE)
        with files.replacing_text(path) as file:
            file.writelines(f"{line}\n" for line in broken)
        print(f"Broken images that were left out: {len(broken)}; {path} names them.")
    if not (total := sum(records.count_records(paths))):
        raise ValueError(f"{folder}: none of its record files has an image")
    print(f"Finished writing all {total} images in data set.")


def _checked_note(
    folder: str, jobs: Sequence[Job], class_names: Sequence[str], options: Options
) -> ConversionNote:
    """Returns the note about the record files that stay; ValueError if the new ones do not fit."""
    note = ConversionNote(folder)
    replaced = {job.split for job in jobs if options.overwrite}
    note.keep({s for s in note.splits() if s not in replaced and existing(folder, s)})
    for job in jobs:
        note.refuse_other(job.split, job.source.description, class_names)
    return note


def existing(folder: str, split: str) -> list[str]:
    """Returns the record files of a split, of any number."""
    pattern = re.compile(rf"{split}-(\d{{5}}-of-\d{{5}}|\w+\.tfrecord)")
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return [os.path.join(folder, name) for name in names if pattern.fullmatch(name)]


def _unfinished(folder: str) -> list[str]:
    """Returns what killed conversions have left."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    pattern = re.compile(r"\.\w+-.+\.(\d+)\.partial")
    found = [match for match in map(pattern.fullmatch, names) if match]
    return [os.path.join(folder, match[0]) for match in found if match[1] != str(os.getpid())]


def _remove(paths: Iterable[str]) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)


@contextlib.contextmanager
def _ignoring_warnings() -> Iterator[None]:
    """Hides Pillow's warnings about pictures that it reads all the same."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
