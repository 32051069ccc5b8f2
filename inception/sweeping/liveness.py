"""Whether the sweep that runs a trial is still alive, as other sweeps can tell."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from terngrad.launcher.state import birth

_LOST_SECS = 120.0  # a sweep on another machine that was silent for so long is lost
BEAT_SECS = 20.0  # between two signs of life

Sign = Mapping[str, Any]


def sign() -> Sign:
    """Returns a sign of life of this process."""
    pid = os.getpid()
    return {"time": time.time(), "host": socket.gethostname(), "pid": pid, "birth": birth(pid)}


def is_alive(seen: Sign) -> bool:
    """Whether the process that gave a sign of life still lives."""
    if seen["host"] == socket.gethostname():
        return birth(seen["pid"]) == seen["birth"]
    return time.time() - seen["time"] < _LOST_SECS
