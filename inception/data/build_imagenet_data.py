r"""Turns ImageNet's pictures into record files, as JPEG or as raw pixels.

python -m inception.data.build_imagenet_data --train_directory=TRAIN \
    --validation_directory=VALIDATION --output_directory=RECORDS --bounding_box_file=BOXES.csv

TRAIN holds a folder for each synset, such as n01440764. VALIDATION does too, or it holds all
pictures and --validation_labels_file says their synsets. Either may also be the archive as it is
published. A conversion that was stopped goes on with the missing files.
"""

import dataclasses
import functools

from absl.flags import FlagValues

from inception import app
from inception.flags import table
from inception.flags.conversion import FoldersConfig, log_unused_shards
from inception.flags.table import TEXT, flag, refuse
from slim.datasets import imagenet


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Config(FoldersConfig):
    train_directory: str | None = flag(
        "Data", TEXT, None, "folder with a folder for each synset, or ILSVRC2012_img_train.tar"
    )
    validation_directory: str | None = flag(
        "Data", TEXT, None, "the same for validation, or a flat folder, or ILSVRC2012_img_val.tar"
    )
    labels_file: str | None = flag(
        "Data",
        TEXT,
        None,
        "text file with a synset in each line, in the order of the labels from 1 on; not set = the "
        "1000 of the challenge",
    )
    imagenet_metadata_file: str | None = flag(
        "Data",
        TEXT,
        None,
        "text file with a synset, a tab and its name in each line; not set = the 1000 of the "
        "challenge",
    )
    bounding_box_file: str | None = flag(
        "Data",
        TEXT,
        None,
        "CSV file that process_bounding_boxes makes, or the archive or folder of annotations; not "
        "set = no boxes",
    )
    validation_labels_file: str | None = flag(
        "Data",
        TEXT,
        None,
        "synsets of flat validation pictures: a line for each in the order of their names, or the "
        "archive or folder of annotations",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        files = "labels_file", "imagenet_metadata_file", "bounding_box_file"
        table.refuse_missing(self, *files, "validation_labels_file")


def main(values: FlagValues) -> None:
    """Converts the pictures that the flags name."""
    config = table.read(_Config, values)
    with app.quiet_import():
        from inception.on_spark import conversion as on_spark
        from slim.conversion import convert
    _refuse_unused_labels(config)
    classes = imagenet.read_classes(config.labels_file, config.imagenet_metadata_file)
    splits = imagenet.find(
        config.train_directory,
        config.validation_directory,
        classes=classes,
        boxes=[config.bounding_box_file] if config.bounding_box_file else [],
        validation_labels=config.validation_labels_file,
        labels_hint="give them with --validation_labels_file",
    )
    log_unused_shards(imagenet.INFO.splits, splits, values)
    with on_spark.shard_writer(config.spark) as write_shards:
        how = config.arguments() | {"write_shards": write_shards}
        convert.write(imagenet.INFO, splits, config.output_directory, **how)


def _refuse_unused_labels(config: _Config) -> None:
    """Raises ValueError if the classes of the validation pictures are known without a file."""
    labels, folder = config.validation_labels_file, config.validation_directory
    if labels and not folder:
        raise refuse("validation_labels_file", labels, "needs --validation_directory")
    if labels and imagenet.has_synset_folders(folder):
        why = f"must not be set: {folder} has a folder for each synset"
        raise refuse("validation_labels_file", labels, why)


if __name__ == "__main__":
    app.run(main, functools.partial(table.define, _Config))
