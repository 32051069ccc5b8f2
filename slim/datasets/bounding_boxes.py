"""ImageNet's bounding boxes: XML annotations, and the CSV file that they are gathered in.

A line of the CSV file is `n00007846_64193.JPEG,0.0060,0.2620,0.7545,0.9940`: a picture, then xmin,
ymin, xmax, ymax as shares of its width and height. A picture with several boxes has several lines.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import os
import re
import tarfile
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from xml.etree import ElementTree

from slim.datasets import picture_files
from slim.datasets.picture_files import BOX_SIDES, Box, decoded_name

_XML = (".xml",)
_ARCHIVES = (".tar", ".tgz", ".tar.gz")
_SYNSET = re.compile(r"n\d{8}")


class Annotation(NamedTuple):
    """The annotation of one picture, from an XML file."""

    picture: str  # file name
    synset: str  # of the first object; "" if it has none
    boxes: tuple[Box, ...]
    num_mended: int  # boxes whose corners were exchanged or lay outside of the picture
    num_dropped: int  # boxes that are empty or belong to another class than the picture

    @property
    def synset_of_picture(self) -> str:
        """The synset in the picture's name; where it has none, that of the first object."""
        own = _SYNSET.match(self.picture)
        return own[0] if own else self.synset


@dataclasses.dataclass
class Counts:
    """Sums over annotations."""

    files: int = 0
    boxes: int = 0
    mended: int = 0
    dropped: int = 0

    def add(self, annotation: Annotation) -> None:
        """Adds one."""
        self.files += 1
        self.boxes += len(annotation.boxes)
        self.mended += annotation.num_mended
        self.dropped += annotation.num_dropped


def parse_annotation(content: bytes, name: str, place: str) -> Annotation:
    """Parses an XML file.

    Boxes are clipped to the picture, and exchanged corners are put in order. Boxes that are then
    empty are dropped, and so are those of another synset than the one in the file's name. The
    names of some objects are no synsets; their boxes are kept.

    Args:
      content: the file.
      name: its name, which is the picture's but for the suffix.
      place: where it is, for errors.

    Raises:
      ValueError: it is not such a file.
    """
    name = os.path.splitext(name)[0]
    try:
        root = ElementTree.fromstring(content)
        width, height = (float(root.findtext(f"size/{side}")) for side in ("width", "height"))
        objects = [(_class(found), _box(found, width, height)) for found in root.iter("object")]
    except (ElementTree.ParseError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ValueError(
            f"{decoded_name(place)}: not an annotation of a picture ({error})"
        ) from None
    own = _SYNSET.match(name)
    boxes, num_mended = [], 0
    for synset, raw in objects:
        box = _mend(raw)
        is_foreign = own and _SYNSET.fullmatch(synset) and synset != own[0]
        if not is_foreign and box[0] < box[2] and box[1] < box[3]:
            boxes.append(box)
            num_mended += box != raw
    synset = objects[0][0] if objects else ""
    return Annotation(f"{name}.JPEG", synset, tuple(boxes), num_mended, len(objects) - len(boxes))


def holds_annotations(source: str) -> bool:
    """Whether this is a folder or a tar archive, which may be damaged, and no text file."""
    if os.path.isdir(source) or source.endswith(_ARCHIVES):
        return True
    return os.path.isfile(source) and tarfile.is_tarfile(source)  # a pipe is read only once


def annotations(source: str) -> Iterator[Annotation]:
    """Yields the annotations in a folder, in its folders, or in a tar archive of XML files.

    The files' names may end in capitals. Hidden files are left out.

    Raises:
      ValueError: a file is damaged.
      OSError: a file cannot be read.
    """
    if not os.path.isdir(source):
        for name, content in picture_files.contents(source, _XML):
            yield parse_annotation(content, os.path.basename(name), f"{source}: {name}")
        return
    for folder, folders, names in os.walk(source):
        folders.sort()
        for name in sorted(names):
            if picture_files.ends_with(name, _XML):
                path = os.path.join(folder, name)
                with open(path, "rb") as file:
                    yield parse_annotation(file.read(), name, path)


def csv_lines(annotation: Annotation) -> Iterator[str]:
    """Yields a line for each box."""
    for box in annotation.boxes:
        yield ",".join([annotation.picture, *(f"{corner:.4f}" for corner in box)])


def read(source: str) -> dict[str, tuple[Box, ...]]:
    """Returns the boxes of each picture, from a CSV file or from annotations; raises as they do."""
    return read_boxes(source) if holds_annotations(source) else read_csv(source)


def read_csv(path: str) -> dict[str, tuple[Box, ...]]:
    """Returns the boxes of each picture that has any, by file name.

    Raises:
      ValueError: a line is not one of such a file.
      OSError: the file cannot be read.
    """
    return _by_picture(
        (line.rpartition("/")[2].split(",")[0], _parse_line(line, number, path))
        for number, line in enumerate(picture_files.read_lines(path), 1)
    )


def read_boxes(source: str) -> dict[str, tuple[Box, ...]]:
    """Returns the boxes of each picture, from annotations; see `annotations` for the errors."""
    return _by_picture((found.picture, box) for found in annotations(source) for box in found.boxes)


def _by_picture(boxes: Iterable[tuple[str, Box]]) -> dict[str, tuple[Box, ...]]:
    found: collections.defaultdict[str, tuple[Box, ...]] = collections.defaultdict(tuple)
    for name, box in boxes:
        found[name] += (box,)
    return dict(found)


def _parse_line(line: str, number: int, path: str) -> Box:
    _, *corners = line.split(",")
    try:
        xmin, ymin, xmax, ymax = map(float, corners)
    except ValueError:
        xmin = ymin = xmax = ymax = math.nan
    if not (0 <= xmin <= xmax <= 1 and 0 <= ymin <= ymax <= 1):
        raise ValueError(
            f"{path}: line {number} is {line!r}, must be NAME,xmin,ymin,xmax,ymax with shares of "
            "width and height"
        )
    return xmin, ymin, xmax, ymax


def _class(found: ElementTree.Element) -> str:
    return (found.findtext("name") or "").strip()


def _box(found: ElementTree.Element, width: float, height: float) -> Box:
    """Returns the corners as they stand there, as shares of the picture."""
    pixels = [float(found.findtext(f"bndbox/{corner}")) for corner in BOX_SIDES]
    return tuple(v / size for v, size in zip(pixels, (width, height) * 2, strict=True))


def _mend(box: Box) -> Box:
    xmin, ymin, xmax, ymax = (min(max(value, 0.0), 1.0) for value in box)
    return min(xmin, xmax), min(ymin, ymax), max(xmin, xmax), max(ymin, ymax)
