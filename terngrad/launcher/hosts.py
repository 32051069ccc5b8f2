"""Command lines that run something on another machine, over ssh, or in a working copy there."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

WORKSPACE = str(Path(__file__).parents[2])  # the working copy that this module is part of
PORT = 2222  # default port of the first process of a host
CONNECT_SECS = 10
SSH_STATUS = 255  # of ssh itself: no connection, or it was lost
MISSING_STATUS = os.EX_OSFILE  # of `module_line` where there is no working copy
_COMMON = "scripts/common.sh"
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def ssh_command(
    host: str, line: str, ssh: Sequence[str], connect_secs: int = CONNECT_SECS
) -> list[str]:
    """Returns the command that runs a line of shell on a host; ssh asks for nothing.

    Args:
      host: name for ssh, perhaps with a user.
      line: for the user's shell there.
      ssh: program and options; these override the defaults.
      connect_secs: time-out of the connection.
    """
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={connect_secs}"]
    return [*ssh, *options, "-o", "ServerAliveInterval=15", "--", host, line]


def module_line(workspace: str, module: str, variables: Mapping[str, str] | None = None) -> str:
    """Returns the line of shell that runs a module of a working copy, in its environment.

    A `~` that begins the workspace or a variable is the home there.
    """
    folder = _quoted(workspace)
    settings = [f"export {name}={_quoted(text)}" for name, text in (variables or {}).items()]
    lines = [
        *settings,
        f"cd {folder} 2> /dev/null || {_missing('folder', folder)}",
        f"[[ -f {_COMMON} ]] || {_missing('script', folder + '/' + _COMMON)}",
        f"source {_COMMON}",
        f'exec "${{PYTHON}}" -m {module}',
    ]
    return f"bash --norc -c {shlex.quote('; '.join(lines))}"


def _missing(what: str, path: str) -> str:
    return f"{{ echo no such {what}: {path} >&2; exit {MISSING_STATUS}; }}"


def _quoted(path: str) -> str:
    if path == "~" or path.startswith("~/"):
        return f"~/{shlex.quote(path[2:])}" if path[2:] else "~"
    return shlex.quote(path)


def without_control_characters(text: str) -> str:
    """Returns a text without control characters."""
    return _UNPRINTABLE.sub("", text)


def last_line(text: str, otherwise: str) -> str:
    """Returns the last line of an output that is not empty."""
    lines = [line for line in map(without_control_characters, text.splitlines()) if line.strip()]
    return lines[-1] if lines else otherwise
