"""File descriptors of a ps: it takes as many as it may, and keeps some for itself."""

from __future__ import annotations

import contextlib
import os
import resource

_ENOUGH = 1 << 16
_OWN = 64  # for snapshots, logs, event files and threads that start later


def raise_limit() -> None:
    """Raises the limit of open files as far as this process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # a container may forbid it
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_connections(wanted: int, needed: int, others: int = 0) -> int:
    """Returns how many connections a server may hold, so that this process never lacks files.

    Args:
      wanted: number without such a limit.
      needed: number below which the server is of no use.
      others: connections that this process holds besides.

    Raises:
      ValueError: so many do not fit; the message names the limit.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    most = min(wanted, soft - _OWN - others - _open_files())
    if most < needed:
        least = soft + needed - most
        raise ValueError(
            f"the limit of open files (ulimit -n) is {soft}; allowed is {least} and more"
        )
    return most


def _open_files() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:  # not on Linux
        return 128
