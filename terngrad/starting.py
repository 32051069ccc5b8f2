"""What Ctrl-C and SIGTERM do to a program whose modules are still loading."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

_BEFORE = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


def end_at_signals() -> None:
    """Lets both end this process with one line and status 128 + the signal's number.

    An exception would not do: modules in C replace it by one of their own, with a traceback. Call
    it before the imports, and `stop_ending` after them. A signal that is ignored stays so.
    """
    for number, before in _BEFORE.items():
        if signal.getsignal(number) == before:
            signal.signal(number, _end)


def stop_ending() -> None:
    """Restores what Python does."""
    for number, before in _BEFORE.items():
        if signal.getsignal(number) is _end:
            signal.signal(number, before)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    with contextlib.suppress(OSError, RuntimeError):  # the reader has gone, or print was running
        print(f"{signal.Signals(number).name}: stopped before it began.", file=sys.stderr)
    os._exit(128 + number)
