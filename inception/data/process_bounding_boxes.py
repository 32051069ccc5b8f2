"""Gathers ImageNet's bounding boxes and writes them to standard output as CSV.

python -m inception.data.process_bounding_boxes ANNOTATIONS [SYNSETS_FILE] > BOXES.csv

ANNOTATIONS is a folder of XML files or of folders of these, or a tar archive of them, which may be
compressed. SYNSETS_FILE has a synset in each line; other pictures are left out.
"""

import dataclasses
import functools
import io
import os
import sys

from absl.flags import FlagValues

from inception import app
from inception.flags import table
from inception.flags.table import TEXT, flag, refuse
from slim.datasets import bounding_boxes, picture_files

POSITIONAL = ("annotations", "synsets_file")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Config(table.Checked):
    annotations: str | None = flag(
        "Data", TEXT, None, "folder or tar archive of XML files; required"
    )
    synsets_file: str | None = flag(
        "Data", TEXT, None, "text file with a wanted synset in each line; not set = all"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.annotations:
            raise refuse("annotations", "", "must name a folder or tar archive of XML files")
        table.refuse_missing(self, "annotations", "synsets_file")


def main(values: FlagValues) -> None:
    """Writes the lines, then the counts to stderr."""
    config = table.read(_Config, values)
    wanted = None
    if config.synsets_file:
        lines = picture_files.read_classes(config.synsets_file)
        wanted = {line.split()[0] for line in lines}
    if isinstance(sys.stdout, io.TextIOWrapper):  # the lines have names of files, byte for byte
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    counts = bounding_boxes.Counts()
    for annotation in bounding_boxes.annotations(config.annotations):
        if wanted is None or annotation.synset_of_picture in wanted:
            counts.add(annotation)
            for line in bounding_boxes.csv_lines(annotation):
                print(line)
    if not counts.files:
        raise ValueError(f"{os.path.abspath(config.annotations)}: has no annotations")
    print(
        f"Finished processing {counts.files} XML files. Boxes: {counts.boxes}; mended ones among "
        f"them: {counts.mended}; dropped, as empty or of another class: {counts.dropped}.",
        file=sys.stderr,
    )


if __name__ == "__main__":
    app.run(main, functools.partial(table.define, _Config), positional=POSITIONAL)
