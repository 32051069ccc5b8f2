"""Pictures to convert: what is known about them before they are opened."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import random
from collections.abc import Iterable, Sequence

Box = tuple[float, float, float, float]  # BOX_SIDES as shares of width and height
BOX_SIDES = ("xmin", "ymin", "xmax", "ymax")

_SEED = 12345
_SHOWN = 5  # names in a text that could list thousands


@dataclasses.dataclass(frozen=True, slots=True)
class Picture:
    """One picture: a file, or a member of a tar archive.

    Attributes:
      path: the file or the archive.
      label: index of the class.
      synset: WordNet id of the class, "" for none.
      boxes: bounding boxes of objects.
      member: name in the archive, "" for a file.
      offset: where the picture begins in the archive, in bytes.
      size: bytes in the archive; -1 for all of a file.
      content: the bytes where they are in memory already.
    """

    path: str
    label: int
    synset: str = ""
    boxes: tuple[Box, ...] = ()
    member: str = ""
    offset: int = 0
    size: int = -1
    content: bytes | None = None

    @property
    def name(self) -> str:
        """Name of its file without folders."""
        return printable(os.path.basename(self.member or self.path))

    @property
    def place(self) -> str:
        """Where it is, for errors."""
        return printable(f"{self.path}: {self.member}" if self.member else self.path)

    def read(self) -> bytes:
        """Returns the bytes of the picture's file; raises OSError."""
        if self.content is not None:
            return self.content
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            return file.read(self.size)


@dataclasses.dataclass(frozen=True)
class Pictures:
    """The pictures of one split, in the order in which they are written.

    Attributes:
      items: the pictures.
      class_names: name of each class, by label.
      is_upright: whether to turn pictures as their EXIF orientation says.
    """

    items: Sequence[Picture]
    class_names: Sequence[str]
    is_upright: bool = True


def describe(pictures: Sequence[Picture]) -> str:
    """Tells one list of pictures from others: their number, names, labels and boxes."""
    digest = hashlib.sha256()
    for picture in pictures:
        digest.update(f"{picture.name}\t{picture.label}\t{picture.boxes}\n".encode())
    return f"{len(pictures)} pictures ({digest.hexdigest()[:16]})"


def shuffled(pictures: Iterable[Picture]) -> list[Picture]:
    """Returns the pictures in random order, always the same one, so that shards mix the classes."""
    order = list(pictures)
    random.Random(_SEED).shuffle(order)
    return order


def set_aside(
    groups: Sequence[Sequence[Picture]], counts: Sequence[int]
) -> tuple[list[Picture], list[Picture]]:
    """Draws pictures of each class for validation, always the same ones.

    Args:
      groups: the pictures of each class.
      counts: how many to draw of each class.

    Returns:
      The pictures that are left, and those drawn; both shuffled.
    """
    left, drawn = [], []
    for group, count in zip(groups, counts, strict=True):
        order = shuffled(group)
        drawn += order[:count]
        left += order[count:]
    return shuffled(left), shuffled(drawn)


def printable(text: str) -> str:
    """Returns a file's name with a mark for each byte that is not UTF-8."""
    return os.fsencode(text).decode(errors="replace")


def listed(names: Iterable[str]) -> str:
    """Returns the first names, and how many more there are."""
    names = [printable(name) for name in names]
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + rest
