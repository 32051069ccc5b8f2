"""The flags that programs which make record files share."""

import dataclasses
import functools
import os
from collections.abc import Container, Sequence
from typing import Any

from absl import flags

from inception.flags.checks import log_inert
from inception.flags.table import (
    BOOLEAN,
    MAX_SIDE,
    MAX_THREADS,
    TEXT,
    Checked,
    at_least,
    flag,
    refuse,
    refuse_missing,
)
from slim.conversion.options import Form, Options

_data = functools.partial(flag, "Data")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedConversionConfig(Checked):
    """How to convert any data set."""

    num_threads: int = _data(
        at_least(1, -1, MAX_THREADS), -1, "threads that read images; -1 = one for each core"
    )
    skip_broken: bool = _data(
        BOOLEAN,
        False,
        "leave unreadable images out and list them in broken.txt; without it the first one ends "
        "the conversion",
    )
    overwrite: bool = _data(BOOLEAN, False, "replace record files that exist")

    def options(self) -> Options:
        """The flags as the converter takes them."""
        return Options(
            num_threads=None if self.num_threads == -1 else self.num_threads,
            skip_broken=self.skip_broken,
            overwrite=self.overwrite,
        )


_OWN_SHARDS = "not set = 2, 1024 and 128 of ImageNet, or one for each picture if that is less"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PicturesConfig(SharedConversionConfig):
    """How pictures become record files."""

    train_shards: int | None = _data(at_least(1), None, f"record files for training; {_OWN_SHARDS}")
    validation_shards: int | None = _data(
        at_least(1), None, f"record files for validation; {_OWN_SHARDS}"
    )
    raw_pixel: bool = _data(BOOLEAN, False, "store uint8 pixels instead of JPEG")
    resize_dimen: int = _data(
        at_least(0, high=MAX_SIDE),
        0,
        "with --raw_pixel: side of the square that pictures are resized to; 0 = as they are",
        "pixels",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.resize_dimen and not self.raw_pixel:
            raise refuse("resize_dimen", self.resize_dimen, "needs --raw_pixel=True")

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of slim.conversion.convert that the flags set."""
        shards = {"train": self.train_shards, "validation": self.validation_shards}
        return {
            "num_shards": {split: count for split, count in shards.items() if count},
            "form": Form(self.raw_pixel, self.resize_dimen),
            "options": self.options(),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class FoldersConfig(PicturesConfig):
    """How a program makes record files of pictures that lie in folders."""

    train_directory: str | None = _data(TEXT, None, "folder with a folder for each class")
    validation_directory: str | None = _data(
        TEXT, None, "the same, with other pictures to evaluate with"
    )
    output_directory: str | None = _data(TEXT, None, "folder for the record files; required")
    spark: str = flag(
        "Machines",
        TEXT,
        "",
        "Spark master whose executors write the files, such as spark://HOST:7077; all folders must "
        "be shared with them; not set = this machine",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.output_directory:
            raise refuse("output_directory", "", "must name a folder for the record files")
        if not (self.train_directory or self.validation_directory):
            raise refuse("train_directory", "", "must name a folder with a folder for each class")
        refuse_missing(self, "train_directory", "validation_directory")
        train, validation = self.train_directory, self.validation_directory
        if train and validation and os.path.samefile(train, validation):
            why = "is --train_directory, too; must have other pictures"
            raise refuse("validation_directory", validation, why)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DownloadConfig(PicturesConfig):
    """How a program that also downloads makes record files."""

    data_dir: str | None = _data(
        TEXT, None, "folder for the record files; also given without a flag; required"
    )
    source_dir: str | None = _data(
        TEXT, None, "folder with the original files; not set = DATA_DIR/download"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.data_dir:
            raise refuse("data_dir", "", "must name a folder for the record files")
        refuse_missing(self, "source_dir")


def log_unused_shards(
    splits: Sequence[str], found: Container[str], values: flags.FlagValues
) -> None:
    """Prints a line for each number of record files that was set for a split without pictures."""
    unused = [split for split in splits if split not in found]
    log_inert({f"{split}_shards": f"an empty {split} split" for split in unused}, values)
