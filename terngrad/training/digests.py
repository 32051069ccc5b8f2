"""SHA-256 digests of files, in a file that `sha256sum --check` also reads."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Collection

ENDING = ".sha256"


def write(directory: str, name: str) -> None:
    """Writes the digests of all files of a folder to a file `name` in it; raises OSError."""
    lines = [f"{_digest(os.path.join(directory, f))}  {f}\n" for f in sorted(os.listdir(directory))]
    with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
        file.writelines(lines)


def difference(path: str, names: Collection[str]) -> str:
    """Compares the files that the digests in the file `path` are of; returns what differs, or "".

    Args:
      path: the file of digests; the others are in its folder.
      names: files that it must list. A list that was cut off, or that is of other files, would
        otherwise pass without having looked at them.

    Raises:
      OSError: a file cannot be read, though it may be as it was.
    """
    with open(path, "rb") as file:
        entries = [line.decode(errors="replace").split() for line in file]
    if not entries or any(len(entry) != 2 or len(entry[0]) != 64 for entry in entries):
        return f"{os.path.basename(path)} holds no SHA-256 digests"
    if missing := sorted(set(names).difference(name for _, name in entries)):
        return f"{os.path.basename(path)} does not list {', '.join(missing)}"
    for digest, name in entries:
        try:
            if _digest(os.path.join(os.path.dirname(path), name)) != digest:
                return f"{name} has another SHA-256 digest than when it was written"
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return f"{name}: {error.strerror}"
    return ""


def _digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
