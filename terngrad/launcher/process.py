"""A process that a launcher starts, and what a host answers that was asked about some."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

MARK = "terngrad launcher answers:"  # parts an answer from what a host's start-up files print
BYTES = "latin-1"  # in which each byte is a character


@dataclasses.dataclass(frozen=True)
class Process:
    """A process. For an agent, a `~` that begins a text stands for the home there."""

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
    """What a host did, or several."""

    lines: list[str] = dataclasses.field(default_factory=list)  # for the user
    # What went wrong; after a stop, which processes may still run.
    problems: list[str] = dataclasses.field(default_factory=list)
    # Processes that are not as they should be, with nothing left to do about it.
    ended: list[str] = dataclasses.field(default_factory=list)
    logs: dict[str, str] = dataclasses.field(default_factory=dict)  # by label; see BYTES
