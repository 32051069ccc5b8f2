"""What a launcher and its agent on a host tell each other, as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

MARK = "terngrad launcher answers:"  # parts an answer from what a host's start-up files print
BYTES = "latin-1"  # in which each byte is a character
FOLDER = "~/tmp/terngrad_dist"  # of state files and logs, on each host


@dataclasses.dataclass(frozen=True)
class Job:
    """A process to be started on a host. A `~` that begins a word or a value is the home there.

    Attributes:
      label: its name for messages.
      name: its name for files.
      host: the name by which its host is reached.
      script: file of the working copy that bash runs.
      arguments: of the script.
      environment: variables to set.
      needs: folder that must be there; "" = none.
      log: name of the log.
      max_restarts: how often it is started again if it is killed.
      is_ps: whether it is a parameter server.
      is_chief: whether it is the one that writes checkpoints.
    """

    label: str
    name: str
    host: str
    script: str
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    needs: str = ""
    log: str = ""
    max_restarts: int = 0
    is_ps: bool = False
    is_chief: bool = False


@dataclasses.dataclass
class Answer:
    """What a host did.

    Attributes:
      lines: for the user.
      problems: what went wrong; after a stop, which processes may still run.
      ended: processes that are not as they should be, with nothing left to do about it.
      logs: by name of the process; their bytes as `BYTES` has them.
    """

    lines: list[str] = dataclasses.field(default_factory=list)
    problems: list[str] = dataclasses.field(default_factory=list)
    ended: list[str] = dataclasses.field(default_factory=list)
    logs: dict[str, str] = dataclasses.field(default_factory=dict)
