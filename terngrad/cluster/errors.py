"""The errors that name a process of a training, and what other processes say in them."""

from __future__ import annotations

LONGEST_REASON = 1000  # characters, of why a process ends or refuses another
_LONGEST_QUOTED = 200  # characters of a text from an unknown process


class MembershipError(ValueError):
    """Names the process that is missing, different or lost."""


class SharedError(ValueError):
    """An error that all processes have at once: the text blames none, and the others name none."""


class OtherFailedError(MembershipError):
    """Another process failed before all had joined; the text names it, and says why."""


class FinishedError(MembershipError):
    """The training is complete, so no process can join it any more."""


class DifferenceError(MembershipError):
    """Names a setting that differs between two processes."""


class PortError(MembershipError):
    """Names a port at which this process cannot listen."""


def escaped(text: object, longest: int = _LONGEST_QUOTED) -> str:
    """Returns another process' text for a message or log, in one line that cannot be forged.

    Characters that are not printable, such as line ends and escape sequences, are escaped.
    """
    said = str(text)[:longest]
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in said)
