"""Snapshots of the state of a ps: their files, when a ps writes them, and which one it loads.

A snapshot is complete or absent, and is checked when it is read. Its file consists of a magic line,
the length of its description (8 bytes, little-endian), the description (JSON), the content, and the
CRC-32 of everything before it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import glob
import json
import math
import os
import re
import struct
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import BinaryIO, NamedTuple

import numpy as np

from terngrad.asynchronous.fields import UNREADABLE
from terngrad.asynchronous.plan import PlanError, Proposal
from terngrad.asynchronous.updates import Updates

_MAGIC = b"terngrad snapshot 1\n"
_LENGTH, _CRC = struct.Struct("<Q"), struct.Struct("<I")
_MAX_FILES = 3  # the newest might be damaged, or have what a faulty worker pushed
_LONGEST_DESCRIPTION = 1 << 24
_SPARE_BYTES = 1 << 16  # for descriptions that grow
_SAVING = "snapshot.saving"  # one name, so that kills leave one file
_CHOICE = "chosen-snapshot"
# What file systems say that cannot reserve space.
_NO_RESERVING = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
_NEVER = -math.inf
_FIRST_PAUSE_SECS, _LONGEST_PAUSE_SECS = 1.0, 30.0

Applied = Mapping[int, tuple[int, int]]  # by worker: its process, and the number of its last push


class SnapshotError(ValueError):
    """A file is not a snapshot, or is damaged."""


class SnapshotWriter:
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
            if other != path and other not in older[-(_MAX_FILES - 1) :]:
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


def choose(folder: str, version: int, log: Callable[[str], None]) -> None:
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
                log(f"{text}; remove {choice} to choose it again.")
            return
    if len(newer) == len(found):
        there = ", ".join(str(version_of(path)) for path in found) or "none"
        raise LookupError(f"there are snapshots of these steps: {there}")
    for path in newer:
        set_aside(path, "newer than the chosen step", log)
    with open(choice, "w", encoding="utf-8") as file:
        file.write(f"{version}\n")


def set_aside(path: str, why: str, log: Callable[[str], None]) -> None:
    """Gives a snapshot another name, under which it is neither loaded nor removed, and logs it."""
    other = os.path.join(os.path.dirname(path), f"set-aside.{os.path.basename(path)}")
    try:
        os.replace(path, other)
    except OSError as error:
        log(f"{path}: {why}; it cannot be set aside: {error}")
    else:
        log(f"{path}: {why}; set aside as {other}.")


def _undamaged(folder: str, log: Callable[[str], None]) -> Iterator[tuple[str, dict, bytes]]:
    """Yields path, description and content of a folder's undamaged snapshots, the newest first.

    Sets damaged ones aside.
    """
    for path in reversed(all_snapshots(folder)):
        try:
            description, content = load(path)
        except OSError as error:
            log(f"{error}; looking for an older snapshot.")
        except SnapshotError as error:
            set_aside(path, str(error).removeprefix(f"{path} "), log)
        else:
            yield path, description, content


@dataclasses.dataclass(frozen=True)
class SnapshotSettings:
    """Where a ps writes snapshots, and how often.

    Attributes:
      folder: folder of this ps alone.
      steps: most updates after the last snapshot; 0 = no snapshots.
      chosen: snapshots of more updates than this are set aside first, see `choose`; -1 =
        none.
    """

    folder: str
    steps: int
    chosen: int = -1


class Snapshot(NamedTuple):
    """A snapshot that this ps can load."""

    path: str
    proposal: Proposal
    applied: Applied
    content: bytes
    version: int


class SnapshotManager:
    """Writes and reads the snapshots of one ps. Not for several threads at once.

    Attributes:
      failure: why the last attempt to write a snapshot failed; "" = it did not.
    """

    def __init__(
        self,
        settings: SnapshotSettings,
        ps: int,
        ps_count: int,
        log: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Manages the snapshots of ps `ps` of `ps_count`; `log` is called with lines for the log.

        Raises:
          LookupError, OSError: see `choose`.
        """
        self.failure = ""
        self._settings, self._log, self._clock = settings, log, clock
        self._place = {"ps": ps, "ps_count": ps_count}
        self._writer = SnapshotWriter(settings.folder)
        self._saved_version: float = _NEVER
        self._pause_secs, self._retry_at = 0.0, 0.0
        if settings.steps:
            choose(settings.folder, settings.chosen, log)

    def reset(self, saved_version: float = _NEVER) -> None:
        """Notes that the parameters were replaced; `saved_version` has a snapshot."""
        self._saved_version = saved_version

    def is_due(self, version: int) -> bool:
        """Returns whether another update would be one too many without a snapshot of `version`."""
        steps = self._settings.steps
        return bool(steps) and version - self._saved_version >= steps

    def may_retry(self) -> bool:
        """Returns whether the pause after a failed attempt is over."""
        return self._clock() >= self._retry_at

    def save(self, plan_text: str, applied: Applied, updates: Updates) -> None:
        """Writes a snapshot, unless this version has one or snapshots are off.

        A failure is logged; the next attempt should wait for `may_retry`.
        """
        version = updates.version
        if not self._settings.steps or version == self._saved_version:
            return
        description = self._place | {
            "applied": {str(worker): pair for worker, pair in applied.items()},
            "plan": plan_text,
        }
        state = updates.state()
        try:
            self._writer.save(version, description, state)
        except OSError as error:
            self.failure = f"no snapshot of step {version} could be written: {error}"
            self._pause_secs = min(
                max(_FIRST_PAUSE_SECS, 2 * self._pause_secs), _LONGEST_PAUSE_SECS
            )
            self._retry_at = self._clock() + self._pause_secs
            self._log(f"Updates wait: {self.failure}; tries again in {self._pause_secs:g} s.")
            return
        if self.failure:
            self._log(f"Wrote the snapshot of step {version}, and applies updates again.")
        self.failure, self._pause_secs, self._retry_at = "", 0.0, 0.0
        self._saved_version = version
        try:
            self._writer.reserve(len(state))
        except OSError as error:
            self._log(f"There is no room for the snapshot after that of step {version}: {error}")

    def close(self) -> None:
        """Gives back the space that is reserved for the next snapshot."""
        self._writer.close()

    def load_newest(self, read_plan: Callable[[bytes], Proposal]) -> Snapshot | None:
        """Loads the newest undamaged snapshot, if this ps wrote it; `read_plan` reads its plan."""
        if not self._settings.steps:
            return None
        for path, description, content in _undamaged(self._settings.folder, self._log):
            try:
                snapshot = self._read(path, description, content, read_plan)
            except UNREADABLE as error:
                self._log(f"{path} is not used: {error}")
                return None
            if np.isfinite(np.frombuffer(content, "<f4")).all():
                return snapshot
            set_aside(path, "it has values that are not finite", self._log)
        return None

    def _read(
        self, path: str, description: dict, content: bytes, read_plan: Callable[[bytes], Proposal]
    ) -> Snapshot:
        """Reads a snapshot; raises one of `UNREADABLE` if it is not of this ps."""
        proposal = read_plan(description["plan"].encode())
        place = {name: description[name] for name in self._place}
        if place != self._place:
            raise PlanError(f"it was written by ps {place['ps']} of {place['ps_count']}")
        if len(content) != proposal.state_bytes:
            allowed = proposal.state_bytes
            raise PlanError(f"{len(content)} bytes of state; allowed are {allowed}")
        applied = {int(w): tuple(pair) for w, pair in description["applied"].items()}
        return Snapshot(path, proposal, applied, content, version_of(path))
