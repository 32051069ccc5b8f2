"""Makes a folder of record files from any source of images.

A conversion that was stopped goes on with the record files that are missing; conversion.json, a
`_ConversionNote`, says what the others were made from.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import glob
import hashlib
import json
import os
import re
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.progress import Progress

from slim.conversion.options import Form, Options
from slim.conversion.sources import Source
from slim.datasets import dataset_info, files, records

_BROKEN_FILE = "broken.txt"
_LEFT = ".broken"
_NOTE_FILE = "conversion.json"
_NOTE_KEYS = {"source", "classes", "broken"}

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

    def shares(self) -> dict[str, range]:
        """Assigns images 0, 1, ... to the files in turn, so that sorted images are mixed."""
        total, count = len(self.source), len(self.paths)
        return {path: range(first, total, count) for first, path in enumerate(self.paths)}


def job(
    folder: str, name: str, split: str, source: Source, num_shards: int | None, asked_by: str
) -> Job:
    """Returns the job for a split; see `record_paths`.

    Args:
      folder: folder of the record files.
      name: name of the data set.
      split: name of the split.
      source: its images.
      num_shards: number of record files; None = one.
      asked_by: flag or argument that gives the number, for the error.

    Raises:
      ValueError: a record file would stay empty. No name of a file is made before.
    """
    if len(source) < (num_shards or 1):
        raise ValueError(
            f"{asked_by}={num_shards}: {len(source)} {split} images do not fill {num_shards} "
            f"shards; allowed are at most {len(source)}"
        )
    return Job(split, source, list(record_paths(folder, name, split, num_shards)))


def record_paths(folder: str, name: str, split: str, num_shards: int | None) -> Iterator[str]:
    """Yields the record files of a split: `num_shards`, or one named after the data set."""
    if num_shards is None:
        yield os.path.join(folder, f"{split}-{name}.tfrecord")
        return
    for shard in range(num_shards):
        yield os.path.join(folder, f"{split}-{shard:05d}-of-{num_shards:05d}")


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
    with files.alone_in(folder):
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
    records.drop_counts_of_removed(folder)
    kept = {path for path in expected if os.path.exists(path)}
    if kept and not note.splits():  # records of unknown origin keep their classes
        dataset_info.check_labels(folder, class_names, "the images")
    dataset_info.write_labels(folder, class_names)
    with _ignoring_warnings(), files.progress_bar() as bar:
        for job in jobs:
            note.start(job.split, job.source.description, class_names)
            note.take_left(job.split)
            set_broken = functools.partial(note.set_broken, job.split)
            missing = {path: share for path, share in job.shares().items() if path not in kept}
            write(missing, job.source, options, bar, set_broken)
            note.take_left(job.split)
    print_summary(folder, expected, len(kept))


def leave_broken(folder: str, shard: str, lines: Sequence[str]) -> None:
    """Leaves the lines about a record file's broken images to the process that writes the note.

    Args:
      folder: folder of the record file.
      shard: name of the record file, which need not exist yet.
      lines: a line for each image.
    """
    if lines:
        with files.replacing_text(os.path.join(folder, f".{shard}{_LEFT}")) as file:
            json.dump(lines, file)


def check_form(folder: str, splits: Iterable[str], form: Form) -> None:
    """Raises ValueError if the pictures of some splits are noted to be stored in another form."""
    note = _ConversionNote(folder)
    for split in splits:
        note.refuse_other_form(split, form)


def print_summary(folder: str, paths: Sequence[str], num_kept: int) -> None:
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
    note, path = _ConversionNote(folder), os.path.join(folder, _BROKEN_FILE)
    if broken := note.broken():
        with files.replacing_text(path) as file:
            file.writelines(f"{line}\n" for line in broken)
        print(f"Broken images that were left out: {len(broken)}; {path} names them.")
    elif note.splits() and os.path.lexists(path):  # without a note nobody knows
        _remove([path])
    if not (total := sum(records.count_records(paths))):
        raise ValueError(f"{folder}: none of its record files has an image")
    print(f"Finished writing all {total} images in data set.")


def _checked_note(
    folder: str, jobs: Sequence[Job], class_names: Sequence[str], options: Options
) -> _ConversionNote:
    """Returns the note about the record files that stay; ValueError if the new ones do not fit."""
    note = _ConversionNote(folder)
    replaced = {job.split for job in jobs if options.overwrite}
    note.keep({s for s in note.splits() if s not in replaced and existing(folder, s)})
    for job in jobs:
        note.refuse_other(job.split, job.source.description, class_names, [j.split for j in jobs])
    return note


def existing(folder: str, split: str) -> list[str]:
    """Returns the record files of a split, of any number."""
    pattern = re.compile(rf"{split}-(\d{{5}}-of-\d{{5}}|\w+\.tfrecord)")
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return [os.path.join(folder, name) for name in names if pattern.fullmatch(name)]


def _unfinished(folder: str) -> list[str]:
    """Returns the temporary files of killed conversions."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    pattern = re.compile(r"\.+\w+-.+\.(\d+)\.partial")
    found = [match for match in map(pattern.fullmatch, names) if match]
    return [os.path.join(folder, match[0]) for match in found if match[1] != str(os.getpid())]


def _remove(paths: Iterable[str]) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)


@contextlib.contextmanager
def _ignoring_warnings() -> Iterator[None]:
    """Hides Pillow's warnings about pictures that it can read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class _ConversionNote:
    """conversion.json: the sources of the records beside it, so that a conversion can continue.

    It is read once, and each change is written immediately.

    By split: "source" and "classes" describe what its records are made from, "broken" has a line
    for each image that a record file is without, by the name of the file.
    """

    def __init__(self, folder: str) -> None:
        """Reads the note of a folder, if there is one.

        Raises:
          ValueError: the file is not a note.
        """
        self._path = os.path.join(folder, _NOTE_FILE)
        self._splits: dict[str, dict[str, Any]] = {}
        try:
            with open(self._path, encoding="utf-8") as file:
                self._splits = _checked_splits(json.load(file))
        except FileNotFoundError:
            pass
        except ValueError as error:
            raise ValueError(
                f"{self._path}: is not the note of a conversion ({error}); remove the file"
            ) from None

    def splits(self) -> list[str]:
        """Returns the names of the splits that it knows."""
        return list(self._splits)

    def keep(self, splits: Container[str]) -> None:
        """Drops all other splits; the next change writes that."""
        self._splits = {split: noted for split, noted in self._splits.items() if split in splits}

    def refuse_other(
        self, split: str, source: str, class_names: Sequence[str], converted: Container[str]
    ) -> None:
        """Raises ValueError if a split would be made otherwise than the records that exist.

        Args:
          split: name of the split.
          source: describes what it would be made from.
          class_names: names of the classes, which all splits share.
          converted: the splits of this conversion, whose records --overwrite replaces.
        """
        classes = _describe_classes(class_names)
        for other, noted in self._splits.items():
            if noted["classes"] != classes:
                raise self._refusal(other, noted["classes"], classes, other in converted)
        noted = self._splits.get(split)
        if noted and noted["source"] != source:
            raise self._refusal(split, noted["source"], source)

    def refuse_other_form(self, split: str, form: Form) -> None:
        """Raises ValueError if a split has pictures, and those are stored in another form."""
        source = self._splits.get(split, {}).get("source", "")
        pictures, _, noted = source.rpartition(" as ")
        if pictures and noted != str(form):
            raise self._refusal(split, source, f"{pictures} as {form}")

    def start(self, split: str, source: str, class_names: Sequence[str]) -> None:
        """Notes what a split is made from."""
        broken = self._splits.get(split, {}).get("broken", {})
        classes = _describe_classes(class_names)
        self._splits[split] = {"source": source, "classes": classes, "broken": broken}
        self._write()

    def set_broken(self, split: str, shard: str, lines: Sequence[str]) -> None:
        """Notes the broken images that a record file is without, a line for each."""
        broken = self._splits[split]["broken"]
        if broken.get(shard, []) != lines:
            broken[shard] = list(lines)
            self._write()

    def take_left(self, split: str) -> None:
        """Notes what `leave_broken` has left about the record files that exist."""
        folder = os.path.dirname(self._path)
        for path in glob.glob(os.path.join(glob.escape(folder), f".{split}-*{_LEFT}")):
            shard = os.path.basename(path).removeprefix(".").removesuffix(_LEFT)
            if os.path.exists(os.path.join(folder, shard)):
                with open(path, encoding="utf-8") as file:
                    self.set_broken(split, shard, json.load(file))
            os.remove(path)

    def broken(self) -> list[str]:
        """Returns the lines of all record files."""
        found = (split["broken"] for split in self._splits.values())
        return [line for shards in found for name in sorted(shards) for line in shards[name]]

    def _refusal(self, split: str, noted: str, now: str, is_converted: bool = True) -> ValueError:
        folder = os.path.dirname(self._path)
        remedy = "replace them with --overwrite"
        if not is_converted:
            remedy = f"convert the {split} split, too, with --overwrite, or remove its records"
        return ValueError(
            f"{folder}: its {split} records were made from {noted}, not from {now}; "
            f"name another folder, or {remedy}"
        )

    def _write(self) -> None:
        with files.replacing_text(self._path) as file:
            json.dump(self._splits, file, indent=1)


def _checked_splits(content: Any) -> dict[str, dict[str, Any]]:
    splits = content.values() if isinstance(content, dict) else [content]
    if not all(isinstance(split, dict) and split.keys() == _NOTE_KEYS for split in splits):
        raise ValueError(f"each split must have {', '.join(sorted(_NOTE_KEYS))}")
    return content


def _describe_classes(class_names: Sequence[str]) -> str:
    digest = hashlib.sha256("\n".join(class_names).encode())
    return f"{len(class_names)} classes ({digest.hexdigest()[:16]})"
