"""Turns your own pictures, a folder for each class, into record files for training.

python -m inception.data.build_image_data --train_directory=PICTURES --output_directory=RECORDS

PICTURES/cats and PICTURES/dogs hold the pictures of two classes: JPEG, PNG, BMP, GIF, WebP or TIFF
files of any size. Without --validation_directory a tenth of each class is set aside to evaluate
with. A conversion that was stopped goes on with the missing files. labels.txt names the classes.
"""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

from absl.flags import FlagValues

from inception import app
from inception.flags import table
from inception.flags.checks import log_inert
from inception.flags.conversion import FoldersConfig, log_unused_shards
from inception.flags.table import TEXT, flag, number, refuse


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Config(FoldersConfig):
    labels_file: str | None = flag(
        "Data",
        TEXT,
        None,
        "text file with the name of a folder in each line, in the order of the labels from 1 on; "
        "not set = all folders by name",
    )
    validation_share: float = flag(
        "Data",
        number(0, 0.5),
        0.1,
        "part of each class to evaluate with if there is no --validation_directory",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        table.refuse_missing(self, "labels_file")
        for name in ("train_directory", "validation_directory"):
            folder = getattr(self, name)
            if folder and not self.labels_file and _is_class(self.output_directory, folder):
                why = f"must not lie in --{name}, whose folders are classes"
                raise refuse("output_directory", self.output_directory, why)


def main(values: FlagValues) -> None:
    """Converts the pictures that the flags name."""
    config = table.read(_Config, values)
    if config.validation_directory:
        log_inert({"validation_share": "--validation_directory"}, values)
    with app.quiet_import():
        from inception.on_spark import conversion as on_spark
        from slim.conversion import convert, record_files
        from slim.datasets import images
    splits = images.find(
        config.train_directory,
        config.validation_directory or None,
        config.labels_file,
        config.validation_share,
    )
    log_unused_shards(images.INFO.splits, splits, values)
    if "validation" not in splits:
        older = record_files.existing(config.output_directory, "validation")
        _refuse_older_validation(older, config.validation_share)
    with on_spark.shard_writer(config.spark) as write_shards:
        how = config.arguments() | {"write_shards": write_shards}
        convert.write(images.INFO, splits, config.output_directory, **how)


def _is_class(path: str, folder: str) -> bool:
    """Whether a path lies in a folder of which the next conversion would make a class."""
    inner, outer = Path(path).resolve(), Path(folder).resolve()
    return outer in inner.parents and not inner.relative_to(outer).parts[0].startswith(".")


def _refuse_older_validation(paths: Sequence[str], share: float) -> None:
    """Raises ValueError if there are records that may hold pictures which now serve training."""
    if paths:
        why = f"{paths[0]} may hold pictures that now serve training; remove the validation records"
        raise refuse("validation_share", share, why)


if __name__ == "__main__":
    app.run(main, functools.partial(table.define, _Config))
