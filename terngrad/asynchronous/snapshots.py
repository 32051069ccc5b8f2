"""Snapshots of the state of a ps: complete or absent, and checked when they are read.

A file consists of a magic line, the length of its description (8 bytes, little-endian), the
description (JSON), the content, and the CRC-32 of everything before it.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import struct
import zlib
from collections.abc import Callable

from terngrad import durable

_MAGIC = b"terngrad snapshot 1\n"
_LENGTH, _CRC = struct.Struct("<Q"), struct.Struct("<I")
_KEPT = 2  # the newest might be damaged
_LONGEST_DESCRIPTION = 1 << 24


class SnapshotError(ValueError):
    """A file is not a snapshot, or is damaged."""


def save(folder: str, version: int, description: dict, content: bytes) -> str:
    """Writes a snapshot; returns its path.

    Keeps the newest older one, and removes all others, also those of larger versions, which belong
    to another run.

    Raises:
      OSError: the folder is full or not writable; no files are left behind.
    """
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"snapshot-{version}")
    temporary = os.path.join(folder, "snapshot.saving")  # one name, so that kills leave one file
    text = json.dumps(description).encode()
    head = _MAGIC + _LENGTH.pack(len(text)) + text
    try:
        with open(temporary, "wb") as file:
            file.write(head)
            file.write(content)
            file.write(_CRC.pack(zlib.crc32(content, zlib.crc32(head))))
        durable.publish(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        raise
    older = [p for p in all_snapshots(folder) if version_of(p) < version]
    for other in all_snapshots(folder):
        if other != path and other not in older[-(_KEPT - 1) :]:
            os.remove(other)
    return path


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


def newest(
    folder: str, tell: Callable[[str], None]
) -> tuple[str, dict, bytes] | tuple[None, None, None]:
    """Returns path, description and content of a folder's newest undamaged snapshot, or Nones.

    Calls `tell` with a line for each damaged one.
    """
    for path in reversed(all_snapshots(folder)):
        try:
            return path, *load(path)
        except (SnapshotError, OSError) as error:
            tell(f"{error}; looking for an older snapshot.")
    return None, None, None
