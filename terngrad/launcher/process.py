"""A process that a launcher starts, when it is started again, and what a host answers about it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence

GRACE_SECS = 90.0  # for a process that was asked to end, to save, before it is killed
MARK = "terngrad launcher answers:"  # separates an answer from the output of start-up files
REACHED = "terngrad launcher has reached this host"  # first line of a `remote_command`
BYTES = "latin-1"  # encoding in which each byte is a character
_MAX_IN_A_ROW = 5  # short runs of a process after which it is not started again
_SHORT_SECS = 30.0  # of a run that ended too soon


@dataclasses.dataclass(frozen=True)
class Process:
    """A process. On a host, a leading `~` stands for the home there."""

    label: str  # its name for messages
    command: Sequence[str]
    host: str = ""  # name by which its machine is reached; "" = this one
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)  # variables to add
    is_ps: bool = False
    log: str = ""  # file to which its output is added; "" = none
    state: str = ""  # path of its `StateFile`; "" = none
    is_chief: bool = False  # whether it writes checkpoints
    needs: str = ""  # folder that must be there; "" = none
    max_restarts: int = 0  # how often an agent starts it again if it is killed


@dataclasses.dataclass
class Answer:
    """The answer of one host or several."""

    lines: list[str] = dataclasses.field(default_factory=list)  # for the user
    # What went wrong; after a stop, which processes may still run.
    problems: list[str] = dataclasses.field(default_factory=list)
    # Processes that have failed, were killed or were never started: none of them runs.
    unexpected: list[str] = dataclasses.field(default_factory=list)
    # Processes that a start left alone, by label: another run may have started them.
    refused: list[str] = dataclasses.field(default_factory=list)
    logs: dict[str, str] = dataclasses.field(default_factory=dict)  # by label; see BYTES


_FIRST_PAUSE_SECS, _LONGEST_PAUSE_SECS = 1.0, 60.0


class Restarts:
    """Counts the restarts that are left; pauses grow with each short run of a process."""

    def __init__(self, max_restarts: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Allows `max_restarts` of all processes together."""
        self._left, self._clock = max_restarts, clock
        self._start: dict[str, float] = {}
        self._short: dict[str, int] = {}  # short runs in a row, by process

    def note_start(self, name: str) -> None:
        """Notes that a process starts."""
        self._start[name] = self._clock()

    def next_start(self, name: str) -> tuple[float | None, str]:
        """Notes that a process has failed.

        Returns:
          Seconds until its restart, or None; and a line for the log, "" = none.
        """
        was_long = self._clock() - self._start[name] >= _SHORT_SECS
        short = self._short[name] = 0 if was_long else self._short.get(name, 0) + 1
        if not self._left:
            return None, ""
        if short >= _MAX_IN_A_ROW:
            runs = f"{_MAX_IN_A_ROW} runs of less than {_SHORT_SECS:g} s"
            return None, f"is not started again after {runs}"
        self._left -= 1
        secs = min(_LONGEST_PAUSE_SECS, _FIRST_PAUSE_SECS * 2.0 ** max(0, short - 1))
        return secs, f"is started again in {secs:g} s"
