"""The names of processes in messages, and the errors that name them."""

from __future__ import annotations

from collections.abc import Sequence

CONTROL_PORT_ABOVE = 1000  # of the chief's own port, unless the user says otherwise
LAST_PORT = (1 << 16) - 1
LONGEST_REASON = 1000  # characters, of why a process ends or refuses another
_LONGEST_QUOTED = 200  # characters of what an unknown process has said


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


class ForeignError(ValueError):
    """The received data is not a message: the other end is another program."""


def printable(text: object, longest: int = _LONGEST_QUOTED) -> str:
    """Returns another process' text for a message or log, in one line that cannot be forged.

    Characters that are not printable, such as line ends and escape sequences, are escaped.
    """
    said = str(text)[:longest]
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in said)


def name_of(rank: int, hosts: Sequence[str]) -> str:
    """Returns the name of a process in messages."""
    return f"worker {rank} ({hosts[rank]})" if rank < len(hosts) else f"worker {rank}"


def split_address(address: str) -> tuple[str, int]:
    """Splits "host:port" or "[::1]:2222" into host and port.

    Raises:
      MembershipError: the address has another form.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or len(port) > 5 or not 0 < int(port) <= LAST_PORT:
        raise MembershipError(f"{address!r} must be host:port, with a port from 1 to {LAST_PORT}")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise MembershipError(f"{address!r}: an IPv6 address must be in brackets, as [::1]:2222")
    return host.strip("[]"), int(port)
