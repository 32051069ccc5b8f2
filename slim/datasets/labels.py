"""labels.txt: the classes of a data set that only its folder knows."""

from __future__ import annotations

import os

from slim.datasets.dataset_info import BACKGROUND


def read_labels(folder: str) -> tuple[str, ...]:
    """Reads the lines id:name of labels.txt and returns the name of each label, from 0 on.

    The ids count up from 0 or from 1. In the second case label 0 is the background.

    Raises:
      ValueError: the file is missing, or a line has no id, another id than the next, or no name.
    """
    path = os.path.join(folder, "labels.txt")
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line for line in file.read().splitlines() if line.strip()]
    except FileNotFoundError:
        raise ValueError(f"{path} is missing; it has a line id:name for each class") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read ({error})") from None
    if not lines:
        raise ValueError(f"{path} is empty; it must have a line id:name for each class")
    names = [] if lines[0].partition(":")[0].strip() == "0" else [BACKGROUND]
    for number, line in enumerate(lines, 1):
        label, _, name = (part.strip() for part in line.partition(":"))
        if label != str(len(names)) or not name:
            raise ValueError(f"{path}: line {number} is {line!r}, must be {len(names)}:name")
        names.append(name)
    return tuple(names)
