"""Moves ImageNet's flat validation pictures into a folder for each synset.

python -m inception.data.preprocess_imagenet_validation_data DIR LABELS_FILE

LABELS_FILE has the synset of a picture in each line, in the order of the pictures' names. Each
synset must be one of the challenge's 1000. A run that was stopped can be started again.
build_imagenet_data needs no folders: it also takes flat pictures, and those of other synsets, with
--validation_labels_file.
"""

import dataclasses
import functools

from absl.flags import FlagValues

from inception import app
from inception.flags import table
from inception.flags.table import TEXT, flag, refuse
from slim.datasets import imagenet, picture_files

POSITIONAL = ("directory", "labels_file")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Config(table.Checked):
    directory: str | None = flag("Data", TEXT, None, "folder of the pictures; required")
    labels_file: str | None = flag(
        "Data", TEXT, None, "text file with the synset of a picture in each line; required"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in POSITIONAL:
            if not getattr(self, name):
                raise refuse(name, "", "must be given")
        table.refuse_missing(self, *POSITIONAL)


def main(values: FlagValues) -> None:
    """Moves the pictures and says how many."""
    config = table.read(_Config, values)
    synsets = picture_files.read_lines(config.labels_file)
    moved = imagenet.sort_into_folders(
        config.directory, synsets, config.labels_file, known=imagenet.synsets()
    )
    print(f"Moved {moved} of {len(synsets)} pictures into the folders of their synsets.")


if __name__ == "__main__":
    app.run(main, functools.partial(table.define, _Config), positional=POSITIONAL)
