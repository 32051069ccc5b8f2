"""labels.txt: the names of classes, a line id:name for each."""

from __future__ import annotations

import os
from collections.abc import Sequence

from slim.datasets import files
from slim.datasets.picture_files import BACKGROUND

_FILE = "labels.txt"


def exist(folder: str) -> bool:
    """Returns whether a folder has a labels.txt."""
    return os.path.exists(os.path.join(folder, _FILE))


def read_labels(folder: str) -> tuple[str, ...]:
    """Reads the lines id:name of labels.txt and returns the name of each label, from 0 on.

    The ids count up from 0 or from 1. In the second case label 0 is the background.

    Raises:
      ValueError: the file is missing, or a line has no id, another id than the next, or no name.
    """
    path = os.path.join(folder, _FILE)
    try:
        with open(path, encoding="utf-8-sig") as file:
            numbered = enumerate(file.read().splitlines(), 1)
            lines = [(number, line) for number, line in numbered if line.strip()]
    except FileNotFoundError:
        raise ValueError(f"{path} is missing; it has a line id:name for each class") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read ({error})") from None
    if not lines:
        raise ValueError(f"{path} is empty; it must have a line id:name for each class")
    names = [] if lines[0][1].partition(":")[0].strip() == "0" else [BACKGROUND]
    for number, line in lines:
        label, _, name = (part.strip() for part in line.partition(":"))
        if label != str(len(names)) or not name:
            raise ValueError(f"{path}: line {number} is {line!r}, must be {len(names)}:name")
        names.append(name)
    return tuple(names)


def write_labels(folder: str, names: Sequence[str], file_name: str = _FILE) -> None:
    """Writes labels.txt, or a file of another name, with the name of each label, from 0 on."""
    with files.replacing_text(os.path.join(folder, file_name)) as file:
        file.writelines(f"{label}:{name}\n" for label, name in enumerate(names))


def check_labels(folder: str, names: Sequence[str], source: str) -> None:
    """Raises ValueError if the folder has a labels.txt with other classes than `names`.

    Args:
      folder: folder that may have a labels.txt.
      names: name of each label, from 0 on.
      source: where `names` are from, in the plural, for the error.
    """
    if not exist(folder):
        return
    path, there = os.path.join(folder, _FILE), read_labels(folder)
    if len(there) != len(names):
        raise ValueError(f"{path} names {len(there)} classes, {source} have {len(names)}")
    for label, (before, now) in enumerate(zip(there, names, strict=True)):
        if before != now:
            raise ValueError(f"{path}: label {label} is {before!r}; in {source} it is {now!r}")
