"""Snapshots of the state of a ps: complete or absent, and checked when they are read.

A file consists of a magic line, the length of its description (8 bytes, little-endian), the
description (JSON), the content, and the CRC-32 of everything before it.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO

_MAGIC = b"terngrad snapshot 1\n"
_LENGTH, _CRC = struct.Struct("<Q"), struct.Struct("<I")
_KEPT = 3  # the newest might be damaged, or have what a faulty worker pushed
_LONGEST_DESCRIPTION = 1 << 24
_SPARE_BYTES = 1 << 16  # for descriptions that grow
_SAVING = "snapshot.saving"  # one name, so that kills leave one file
_CHOICE = "chosen-snapshot"
# What file systems say that cannot reserve space.
_NO_RESERVING = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class SnapshotError(ValueError):
    """A file is not a snapshot, or is damaged."""


class Writer:
    """Writes the snapshots of a folder.

    Between two snapshots it holds what the next one needs, so that neither a lack of descriptors
    nor, as far as the file system can reserve it, a full disk prevents that one.
    """

    def __init__(self, folder: str) -> None:
        """Writes nothing yet."""
        self._folder, self._saving = folder, os.path.join(folder, _SAVING)
        self._folder_descriptor = -1
        self._file: BinaryIO | None = None

    def reserve(self, size: int) -> None:
        """Makes room for the next snapshot, of about `size` bytes.

        Raises:
          OSError: there is none, or the folder is not writable.
        """
        if not self._is_in_place():
            self.close()
        if self._folder_descriptor < 0:
            os.makedirs(self._folder, exist_ok=True)
            self._folder_descriptor = os.open(self._folder, os.O_RDONLY)
        if self._file is None:
            self._file = open(self._saving, "wb", buffering=0)  # noqa: SIM115
        try:
            os.posix_fallocate(self._file.fileno(), 0, size + _SPARE_BYTES)
        except OSError as error:
            if error.errno not in _NO_RESERVING:
                raise

    def _is_in_place(self) -> bool:
        """Whether folder and file still have their names; somebody may have removed the folder."""
        held = [(self._folder_descriptor, self._folder)] if self._folder_descriptor >= 0 else []
        held += [(self._file.fileno(), self._saving)] if self._file else []
        return all(_is_at(descriptor, path) for descriptor, path in held)

    def save(self, version: int, description: dict, content: bytes) -> str:
        """Writes a snapshot; returns its path.

        Keeps the two newest older ones, and removes all others, also those of larger versions,
        which belong to another run.

        Raises:
          OSError: the folder is full or not writable; another attempt may succeed.
        """
        text = json.dumps(description).encode()
        head = _MAGIC + _LENGTH.pack(len(text)) + text
        self.reserve(len(head) + len(content))
        self._file.seek(0)
        for part in (head, content, _CRC.pack(zlib.crc32(content, zlib.crc32(head)))):
            _write_all(self._file, part)
        self._file.truncate()
        os.fsync(self._file.fileno())
        path = os.path.join(self._folder, f"snapshot-{version}")
        os.replace(self._saving, path)
        self._file.close()
        self._file = None
        os.fsync(self._folder_descriptor)
        older = [p for p in all_snapshots(self._folder) if version_of(p) < version]
        for other in all_snapshots(self._folder):
            if other != path and other not in older[-(_KEPT - 1) :]:
                os.remove(other)
        return path

    def close(self) -> None:
        """Gives back what was reserved."""
        if self._file is not None:
            self._file.close()
            self._file = None
            with contextlib.suppress(OSError):
                os.remove(self._saving)
        if self._folder_descriptor >= 0:
            os.close(self._folder_descriptor)
            self._folder_descriptor = -1


def _is_at(descriptor: int, path: str) -> bool:
    """Whether an open file still has this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def _write_all(file: BinaryIO, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def all_snapshots(folder: str) -> list[str]:
    """Returns the paths of a folder's snapshots, oldest first."""
    paths = glob.glob(os.path.join(glob.escape(folder), "snapshot-*"))
    return sorted((p for p in paths if re.fullmatch(r".*snapshot-\d+", p)), key=version_of)


def version_of(path: str) -> int:
    """Returns the number of updates before a snapshot."""
    return int(path.rpartition("-")[2])


def load(path: str) -> tuple[dict, bytes]:
    """Returns description and content of a snapshot; SnapshotError if the file is damaged."""
    with open(path, "rb") as file:
        data = file.read()
    start = len(_MAGIC) + _LENGTH.size
    if len(data) < start + _CRC.size or not data.startswith(_MAGIC):
        raise SnapshotError(f"{path} is not a snapshot")
    body, (checksum,) = memoryview(data)[: -_CRC.size], _CRC.unpack(data[-_CRC.size :])
    (length,) = _LENGTH.unpack_from(data, len(_MAGIC))
    if zlib.crc32(body) != checksum or length > min(_LONGEST_DESCRIPTION, len(body) - start):
        raise SnapshotError(f"{path} is damaged")
    return json.loads(bytes(body[start : start + length])), bytes(body[start + length :])


def choose(folder: str, version: int, tell: Callable[[str], None]) -> None:
    """Sets aside snapshots of more updates than `version`, once for each new choice; -1 = none.

    A ps that is started again with the same flags goes on from what it wrote after the choice.

    Raises:
      LookupError: no snapshot is old enough; the text names those that there are.
      OSError: the folder is not writable.
    """
    choice = os.path.join(folder, _CHOICE)
    if version < 0:  # the next choice is a new one
        with contextlib.suppress(FileNotFoundError):
            os.remove(choice)
        return
    found = all_snapshots(folder)
    newer = [path for path in found if version_of(path) > version]
    with contextlib.suppress(FileNotFoundError), open(choice, encoding="utf-8") as file:
        if file.read().strip() == str(version):
            if newer:
                text = f"step {version} was chosen before, so newer snapshots count"
                tell(f"{text}; remove {choice} to choose it again.")
            return
    if len(newer) == len(found):
        there = ", ".join(str(version_of(path)) for path in found) or "none"
        raise LookupError(f"there are snapshots of these steps: {there}")
    for path in newer:
        set_aside(path, "newer than the chosen step", tell)
    with open(choice, "w", encoding="utf-8") as file:
        file.write(f"{version}\n")


def set_aside(path: str, why: str, tell: Callable[[str], None]) -> None:
    """Gives a snapshot another name, under which it is neither loaded nor removed; tells it."""
    other = os.path.join(os.path.dirname(path), f"set-aside.{os.path.basename(path)}")
    try:
        os.replace(path, other)
    except OSError as error:
        tell(f"{path}: {why}; it cannot be set aside: {error}")
    else:
        tell(f"{path}: {why}; set aside as {other}.")


def undamaged(folder: str, tell: Callable[[str], None]) -> Iterator[tuple[str, dict, bytes]]:
    """Yields path, description and content of a folder's undamaged snapshots, the newest first.

    Sets damaged ones aside.
    """
    for path in reversed(all_snapshots(folder)):
        try:
            description, content = load(path)
        except OSError as error:
            tell(f"{error}; looking for an older snapshot.")
        except SnapshotError as error:
            set_aside(path, str(error).removeprefix(f"{path} "), tell)
        else:
            yield path, description, content
