"""The state of a process: a JSON file on its host.

With the file the process can be shown and stopped. It is identified by its id, its start and the
boot of its machine, so that a later process with the same id is not mistaken for it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from terngrad.launcher.process import Process

_POLL_SECS = 0.1
_NOTE_SECS = 5.0  # for a supervisor to note how its process ended
# Keys in the files of earlier versions.
_FORMER_KEYS = {"born": "start_mark", "watcher": "supervisor", "watcher_born": "supervisor_start"}
_CRASHES = {getattr(signal, f"SIG{name}") for name in ("ILL", "ABRT", "BUS", "FPE", "KILL", "SEGV")}


def start_mark(pid: int) -> str | None:
    """Returns the boot of this machine and the tick at which a process started; None if ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return None if fields[0] == "Z" else f"{boot} {fields[19]}"


@dataclasses.dataclass(frozen=True)
class Record:
    """A process, which leads a process group, and its supervisor, which waits for its end."""

    label: str  # its name for messages
    host: str  # name by which it is reached
    command: Sequence[str]
    log: str
    log_start: int  # size of the log before its first line
    started: float  # seconds since 1970
    pid: int
    start_mark: str | None  # of the function of this name
    supervisor: int  # its process id
    supervisor_start: str | None  # likewise
    status: int | None = None  # see `exit_status`; None while it runs
    is_due: bool = False  # whether it is about to be started again

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self.start_mark is not None and start_mark(self.pid) == self.start_mark

    @property
    def is_supervised(self) -> bool:
        """Whether its supervisor runs."""
        start = self.supervisor_start
        return start is not None and start_mark(self.supervisor) == start


class Condition(NamedTuple):
    """The condition of a process in words, and whether it is a problem."""

    text: str
    is_problem: bool = False


class StateFile:
    """The file of a process. Its supervisor writes it; others may ask the process to stop."""

    def __init__(self, path: str) -> None:
        """Takes the path of the file, which ends with .json; writes nothing."""
        self._path = Path(path)
        self._stopping = self._path.with_suffix(".stopping")

    def read(self) -> Record | None:
        """Returns the last record; None if the process was not started."""
        try:
            values = json.loads(self._path.read_text())
            return Record(**{_FORMER_KEYS.get(key, key): value for key, value in values.items()})
        except (OSError, ValueError, TypeError, AttributeError):
            return None

    def note_start(self, process: Process, log_start: int, pid: int) -> Record:
        """Writes and returns the record of a process that this one has started and supervises."""
        own, command = os.getpid(), list(process.command)
        ids = {"pid": pid, "start_mark": start_mark(pid)}
        ids |= {"supervisor": own, "supervisor_start": start_mark(own)}
        known = (process.label, process.host, command, process.log, log_start, time.time())
        record = Record(*known, **ids)
        self.write(record)
        return record

    def note_end(self, status: int) -> None:
        """Adds how the process ended; raises OSError."""
        if record := self.read():
            self.write(dataclasses.replace(record, status=status))

    def write(self, record: Record) -> None:
        """Replaces the record atomically; raises OSError."""
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(dataclasses.asdict(record), indent=1) + "\n")
        new.replace(self._path)

    def clear(self) -> None:
        """Forgets an earlier run."""
        for path in (self._path, self._stopping):
            path.unlink(missing_ok=True)

    def ask_to_stop(self) -> None:
        """Notes that the process must not be started again; sends no signal."""
        if self._path.exists():
            self._stopping.touch()

    @property
    def is_stopping(self) -> bool:
        """Whether the process must not be started again."""
        return self._stopping.exists()

    def condition(self) -> Condition:
        """Returns the condition of the process; waits until its end is noted."""
        deadline = time.monotonic() + _NOTE_SECS
        while record := self.read():
            was_supervised = record.is_supervised
            if record.is_alive:
                return Condition(f"running (process {record.pid})")
            if record.status is not None and not record.is_due:
                return _end(record.status)
            if record.is_due and was_supervised and not self.is_stopping:
                return Condition("was killed; is started again soon", is_problem=True)
            is_final = not was_supervised and self.read() == record
            if is_final or time.monotonic() > deadline:
                why = "the host or its supervisor ended too"
                return Condition(f"ended with unknown status: {why}", is_problem=True)
            time.sleep(_POLL_SECS)
        return Condition("not started", is_problem=True)


def started_in(folder: str) -> list[Process]:
    """Returns the processes that have a state file in a folder."""
    found = {str(path): StateFile(str(path)).read() for path in sorted(Path(folder).glob("*.json"))}
    return [
        Process(record.label, (), record.host, state=path, is_ps=record.label.startswith("ps "))
        for path, record in found.items()
        if record
    ]


def _end(status: int) -> Condition:
    if status == 0:
        return Condition("ended with status 0")
    if name := signal_name(status):
        return Condition(f"ended by {name}", is_problem=name != "SIGTERM")
    return Condition(f"failed with status {status}", is_problem=True)


def exit_status(code: int) -> int:
    """Returns a shell's exit status for Popen's: 128 + the number of a signal that ended it."""
    return 128 - code if code < 0 else code


def signal_name(status: int) -> str:
    """Returns the signal of an exit status; "" if it has none."""
    try:
        return signal.Signals(status - 128).name
    except ValueError:
        return ""


def was_killed(status: int) -> bool:
    """Whether an exit status means that a process was killed or crashed, not asked to end."""
    return status - 128 in _CRASHES


def send(group: int, number: int) -> bool:
    """Sends a signal to a process group; returns whether there is one."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True
