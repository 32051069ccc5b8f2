"""Requests to end, and an output that many processes share."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import NamedTuple, NoReturn

import rich.console
import rich.text

_LOOK_SECS = 0.1


class Event(NamedTuple):
    """A process has ended, or the launcher was asked to end."""

    secs: float  # when, on the monotonic clock
    status: int  # exit status of the process, or which the request gives the run
    text: str = ""  # for the user
    label: str = ""  # of the process; "" = a request


class Requests:
    """Requests to end. They are noted, never raised: the start of a worker is not cut in two.

    Attributes:
      events: the requests so far.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []

    def listen(self) -> None:
        """Notes SIGTERM, Ctrl-C and SIGHUP from now on."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
                signal.signal(number, lambda number, frame: self.note(number))

    def note(self, number: int) -> None:
        """Notes a signal, also one that stands for a closed output."""
        self.events.append(Event(time.monotonic(), 128 + number))

    def wait(self, secs: float) -> bool:
        """Waits until the first request at most; returns whether there is one."""
        deadline = time.monotonic() + secs
        while not self.events and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(_LOOK_SECS, left))
        return bool(self.events)

    def at_once(self) -> bool:
        """Whether Ctrl-C came twice. Other signals, such as SIGHUP, may arrive twice anyway."""
        return [event.status for event in self.events].count(128 + signal.SIGINT) > 1


class Output:
    """Standard output. A closed one is a request to end."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        # Lines may hold characters that its encoding lacks.
        sys.stdout.reconfigure(errors="replace")
        self._console = rich.console.Console(highlight=False, soft_wrap=True)

    def show(self, line: str | rich.text.Text) -> None:
        """Prints a line; from any thread."""
        try:
            self._console.print(line)
        except (OSError, SystemExit):  # rich makes a closed pipe a SystemExit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            self._requests.note(signal.SIGPIPE)


def end_program(status: int) -> NoReturn:
    """Ends this program, even if a thread is blocked in writing to a closed output."""
    if threading.active_count() > 1:
        os._exit(status)
    sys.exit(status)
