"""What is known of a process that goes on without its launcher: a file of JSON on its host.

Whoever has the file can show and stop the process. A process is known by its id, its start and the
boot of its machine, so none that got the same id later is taken for it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

_LOOK_SECS = 0.1
_NOTE_SECS = 5.0  # for a supervisor to note how its process ended
_CRASHES = {getattr(signal, f"SIG{name}") for name in ("ILL", "ABRT", "BUS", "FPE", "KILL", "SEGV")}


def birth(pid: int) -> str | None:
    """Returns the boot of this machine and the tick at which a process started; None if ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return None if fields[0] == "Z" else f"{boot} {fields[19]}"


@dataclasses.dataclass(frozen=True)
class Record:
    """A process and its supervisor.

    Attributes:
      label: its name for messages.
      host: the name by which it is reached.
      command: program and arguments; it leads a process group.
      log: file of its output.
      begun: size of the log before its first line.
      started: when, in seconds since 1970.
      pid: process id, which is the group's, too.
      born: see `birth`.
      watcher: process id of the supervisor.
      watcher_born: see `birth`.
      status: how the last run ended; None while it runs, 128 + the signal's number after a signal.
      is_due: whether it is about to be started again.
    """

    label: str
    host: str
    command: Sequence[str]
    log: str
    begun: int
    started: float
    pid: int
    born: str | None
    watcher: int
    watcher_born: str | None
    status: int | None = None
    is_due: bool = False

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self.born is not None and birth(self.pid) == self.born

    @property
    def is_watched(self) -> bool:
        """Whether its supervisor runs."""
        return self.watcher_born is not None and birth(self.watcher) == self.watcher_born


@dataclasses.dataclass(frozen=True)
class Condition:
    """How a process is, in words."""

    text: str
    is_problem: bool = False


def new_record(
    label: str, host: str, command: Sequence[str], log: str, begun: int, pid: int
) -> Record:
    """Returns the record of a process that this one has started and watches."""
    own = os.getpid()
    who = {"pid": pid, "born": birth(pid), "watcher": own, "watcher_born": birth(own)}
    return Record(label, host, list(command), log, begun, time.time(), **who)


class StateFile:
    """The file of a process. Its supervisor writes it; others may ask the process to stop."""

    def __init__(self, folder: Path, name: str) -> None:
        """Takes the folder and the process' name there; writes nothing."""
        self.path = folder / f"{name}.json"
        self._stopping = folder / f"{name}.stopping"

    @classmethod
    def beside(cls, log: str) -> StateFile:
        """Returns the file of the process that a log belongs to."""
        path = Path(log)
        return cls(path.parent, path.stem)

    def read(self) -> Record | None:
        """Returns the last record; None if the process was not started."""
        try:
            return Record(**json.loads(self.path.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, record: Record) -> None:
        """Replaces the record, whole; raises OSError."""
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(dataclasses.asdict(record), indent=1) + "\n")
        new.replace(self.path)

    def clear(self) -> None:
        """Forgets an earlier run."""
        for path in (self.path, self._stopping):
            path.unlink(missing_ok=True)

    def ask_to_stop(self) -> None:
        """Lets the process not be started again."""
        if self.path.exists():
            self._stopping.touch()

    @property
    def is_stopping(self) -> bool:
        """Whether the process must not be started again."""
        return self._stopping.exists()

    def condition(self) -> Condition:
        """Returns how the process is; waits until its end is noted."""
        deadline = time.monotonic() + _NOTE_SECS
        while record := self.read():
            was_watched = record.is_watched
            if record.is_alive:
                return Condition(f"running (process {record.pid})")
            if record.status is not None and not record.is_due:
                return _end(record.status)
            if record.is_due and was_watched and not self.is_stopping:
                return Condition("was killed; is started again soon", is_problem=True)
            is_final = not was_watched and self.read() == record
            if is_final or time.monotonic() > deadline:
                why = "the host or the process that watched it ended too"
                return Condition(f"ended with unknown status: {why}", is_problem=True)
            time.sleep(_LOOK_SECS)
        return Condition("not started", is_problem=True)


def files_in(folder: str) -> list[StateFile]:
    """Returns the files of a folder, by name; some may belong to no process."""
    return [StateFile.beside(str(path)) for path in sorted(Path(folder).glob("*.json"))]


def _end(status: int) -> Condition:
    if status == 0:
        return Condition("ended with status 0")
    if name := signal_name(status):
        return Condition(f"ended by {name}", is_problem=name != "SIGTERM")
    return Condition(f"failed with status {status}", is_problem=True)


def signal_name(status: int) -> str:
    """Returns the signal of a status of 128 + its number; "" for another status."""
    try:
        return signal.Signals(status - 128).name
    except ValueError:
        return ""


def was_killed(status: int) -> bool:
    """Whether a status is that of a process that was killed or crashed, not asked to end."""
    return status - 128 in _CRASHES


def send(group: int, number: int) -> bool:
    """Sends a signal to a process group; returns whether there is one."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True
