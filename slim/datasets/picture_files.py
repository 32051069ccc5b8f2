"""Pictures to convert: finds them in folders and in archives, before they are opened."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import os
import random
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Sequence

Box = tuple[float, float, float, float]  # BOX_SIDES as shares of width and height
BOX_SIDES = ("xmin", "ymin", "xmax", "ymax")

_SEED = 12345
_SHOWN = 5  # names in a text that could list thousands
BACKGROUND = "background"  # name of label 0 where the labels of the classes count from 1
SUFFIXES = (".jpg", ".jpeg", ".jpe", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")


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
        return decoded_name(os.path.basename(self.member or self.path))

    @property
    def place(self) -> str:
        """Where it is, for errors."""
        return decoded_name(f"{self.path}: {self.member}" if self.member else self.path)

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
    """Returns a text that identifies pictures by their number, names, labels and boxes."""
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


def decoded_name(text: str) -> str:
    """Returns a file's name with a mark for each byte that is not UTF-8."""
    return os.fsencode(text).decode(errors="replace")


def listed(names: Iterable[str]) -> str:
    """Returns the first names, and how many more there are."""
    names = [decoded_name(name) for name in names]
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + rest


def class_folders(folder: str) -> list[str]:
    """Returns the names of the folders in a folder, sorted, without hidden ones; raises OSError."""
    with os.scandir(folder) as entries:
        return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))


def pictures_beside(folder: str) -> list[str]:
    """Returns the names of the pictures that lie beside the folders of classes."""
    with os.scandir(folder) as entries:
        return sorted(e.name for e in entries if is_picture(e.name) and e.is_file())


def in_folder(folder: str, label: int, synset: str = "") -> list[Picture]:
    """Returns the pictures that lie in a folder, sorted by name; other files are left out.

    Raises:
      ValueError: the folder has folders.
      OSError: it cannot be read.
    """
    with os.scandir(folder) as entries:
        found = sorted((e.name, e.is_dir()) for e in entries if not e.name.startswith("."))
    if below := [name for name, is_folder in found if is_folder]:
        raise ValueError(
            f"{decoded_name(folder)} has folders ({listed(below)}); "
            "the pictures must lie in the folder of their class itself"
        )
    paths = [os.path.join(folder, name) for name, _ in found if is_picture(name)]
    return [Picture(path, label, synset) for path in paths]


def by_class(folder: str, classes: Sequence[str], is_synset: bool = False) -> list[list[Picture]]:
    """Returns the pictures of each class, none where it has no folder; labels count from 1.

    Args:
      folder: holds the folders of the classes.
      classes: names of the folders.
      is_synset: whether these are WordNet ids.

    Raises:
      ValueError: there is no picture at all, or a class folder has folders.
      OSError: a folder cannot be read.
    """
    present = set(class_folders(folder))
    _log_left_out(folder, [name for name in classes if name in present])
    groups = []
    for label, name in enumerate(classes, 1):
        is_here = name in present
        synset = name if is_synset else ""
        groups.append(in_folder(os.path.join(folder, name), label, synset) if is_here else [])
    if not any(groups):
        raise ValueError(
            f"{decoded_name(folder)} holds no pictures in a folder for each class"
            f"{f' (such as {listed(classes[:2])})' if classes else ''}; "
            f"names of pictures end with {' '.join(SUFFIXES)}"
        )
    return groups


def _log_left_out(folder: str, classes: Iterable[str]) -> None:
    """Prints which files are no pictures of a class."""
    left_out = pictures_beside(folder)
    for name in classes:
        with os.scandir(os.path.join(folder, name)) as entries:
            others = (e.name for e in entries if e.is_file() and not is_picture(e.name))
            left_out += sorted(f"{name}/{o}" for o in others if not o.startswith("."))
    if left_out:
        print(
            f"{decoded_name(folder)}: leaves out {listed(left_out)}; pictures lie in the folder of "
            f"a class, and their names end with {' '.join(SUFFIXES)}"
        )


def is_picture(name: str) -> bool:
    """Whether a file is one to convert, by its name; hidden files are not."""
    return ends_with(name, SUFFIXES)


def ends_with(name: str, suffixes: tuple[str, ...]) -> bool:
    """Whether a file's name ends so, in capitals or not; those of hidden files do not."""
    name = os.path.basename(name).lower()
    return name.endswith(suffixes) and not name.startswith(".")


def label_names(classes: Iterable[str]) -> tuple[str, ...]:
    """Returns the name of each label: the background, then the classes from label 1 on.

    Raises:
      ValueError: a name does not fit in a line of labels.txt.
    """
    names = (BACKGROUND, *map(decoded_name, classes))
    if unfit := [name for name in names if not name.isprintable() or name != name.strip()]:
        raise ValueError(
            f"{unfit[0]!r} cannot be the name of a class: it has spaces around it or characters "
            "that cannot be printed"
        )
    return names


def members(path: str, offset: int = 0, size: int | None = None) -> Iterator[tarfile.TarInfo]:
    """Yields the files in an uncompressed archive, or in one that lies within it.

    Args:
      path: the archive.
      offset: where the inner archive begins, in bytes.
      size: its size in bytes; None for all of the file.

    Raises:
      ValueError: the archive is damaged.
      OSError: the file is missing or cannot be read.
    """
    with open(path, "rb") as file, _naming_damage(path):
        end = os.path.getsize(path) if size is None else offset + size
        file.seek(offset)
        with tarfile.open(fileobj=file, mode="r:") as archive:
            for member in archive:
                if member.offset_data + member.size > end:
                    raise tarfile.ReadError(f"{member.name} is cut off")
                if member.isfile():
                    yield member


def contents(path: str, suffixes: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """Yields name and content of the files in an archive, which may be compressed.

    Args:
      path: the archive.
      suffixes: how the names of the wanted files end, in lower case.

    Raises:
      ValueError: the archive is damaged.
      OSError: the file is missing or cannot be read.
    """
    with (
        open(path, "rb") as file,
        _naming_damage(path),
        tarfile.open(fileobj=file, mode="r|*") as archive,
    ):
        for member in archive:
            if member.isfile() and ends_with(member.name, suffixes):
                yield member.name, archive.extractfile(member).read()


def read_lines(path: str) -> list[str]:
    """Returns the lines of a text file without the spaces around them.

    Blank lines are allowed at the end only: elsewhere one would shift what the others stand for.

    Raises:
      ValueError: the file is not UTF-8, has no lines, or a blank one before others.
      OSError: it is missing or cannot be read.
    """
    with open(path, encoding="utf-8-sig") as file:
        try:
            lines = [line.strip() for line in file.read().rstrip().split("\n")]
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: is not text in UTF-8 ({error})") from None
    if lines == [""]:
        raise ValueError(f"{path}: is empty, must have a name in each line")
    if "" in lines:
        raise ValueError(f"{path}: line {lines.index('') + 1} is blank; remove it")
    return lines


def read_classes(path: str) -> list[str]:
    """Returns the lines of a file that names a class in each line.

    Raises:
      ValueError: a class is named twice, or the file is not UTF-8 or has no lines.
      OSError: it is missing or cannot be read.
    """
    classes = read_lines(path)
    if repeated := [name for name, count in collections.Counter(classes).items() if count > 1]:
        raise ValueError(f"{path}: names {listed(repeated)} more than once")
    return classes


@contextlib.contextmanager
def _naming_damage(path: str) -> Iterator[None]:
    """Turns the errors of a damaged archive into a ValueError that names it."""
    try:
        yield
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{decoded_name(path)}: damaged archive ({error})") from None
