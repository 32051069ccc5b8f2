"""The messages between a sweep and a running trial, through the pipes of the trial's process.

stdin    one `TrialSpec` as a line of JSON; later "stop", or the end of the pipe: the training saves
and ends. So no training goes on without its sweep.
stdout   lines of JSON: an `Evaluation` whenever one is made, and at last the `TrialEnd`.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class TrialSpec:
    """A trial: what to run, and on which part of the machine.

    Attributes:
      folder: the trial's folder; made if it is missing.
      train: module and arguments of the training.
      evaluate: module and arguments of the evaluation.
      follow: the evaluation runs beside the training, and evaluates each checkpoint that it saves.
      slot: which share of the cores and GPUs is used.
      slots: number of shares.
    """

    folder: str
    train: Sequence[str]
    evaluate: Sequence[str]
    follow: bool
    slot: int = 0
    slots: int = 1


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Metrics of a checkpoint, as fractions of the examples."""

    step: int
    precision: float
    recall: float


class Outcome(str, enum.Enum):
    """How a trial ended."""

    DONE = "done"  # trained to the end, and evaluated
    STOPPED = "stopped"  # because the sweep asked for it; the training saved
    FAILED = "failed"  # a program ended with an error: it would fail again
    DIED = "died"  # a program was killed
    LOST = "lost"  # the process that ran the trial was killed, or its machine was lost


@dataclasses.dataclass(frozen=True)
class TrialEnd:
    """The end of a trial, as a message.

    Attributes:
      outcome: how.
      reason: what failed, in one line.
      seconds: time of training, over all attempts.
      bytes_sent: bytes that a node sends in a step; None if the training reported none.
      last: the last evaluation; None if there was none.
    """

    outcome: Outcome
    reason: str = ""
    seconds: float = 0.0
    bytes_sent: int | None = None
    last: Evaluation | None = None


def read_spec(line: str) -> TrialSpec:
    """Reads a trial from its line."""
    return TrialSpec(**json.loads(line))


def read_event(line: str) -> Evaluation | TrialEnd:
    """Reads a line that a trial printed.

    Raises:
      ValueError: it is none.
    """
    found = json.loads(line)
    try:
        if "outcome" not in found:
            return Evaluation(**found)
        last = found["last"] and Evaluation(**found["last"])
        return TrialEnd(**found | {"outcome": Outcome(found["outcome"]), "last": last})
    except TypeError:
        raise ValueError(f"no event of a trial: {line}") from None


def write(message: Any) -> str:
    """Returns a trial or an event as a line."""
    return json.dumps(dataclasses.asdict(message)) + "\n"
