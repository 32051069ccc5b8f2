"""What launchers share at a terminal: options, requests to end, one output for all processes."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

import rich.console
import rich.text

from terngrad import outputs
from terngrad.launcher import state
from terngrad.launcher.process import Process
from terngrad.launcher.state import StateFile


class Parser(argparse.ArgumentParser):
    """Shows a docstring unchanged, prints errors in one line, ignores flags of programs."""

    def __init__(self, name: str, description: str) -> None:
        """Takes the command and the docstring of its module."""
        shape = argparse.RawDescriptionHelpFormatter
        super().__init__(name, description=description, formatter_class=shape, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Ends in one line."""
        sys.exit(f"launch: {message.removeprefix('argument ')}; --help shows how")


def whole(low: int, high: int | None = None) -> Callable[[str], int]:
    """Returns a parser of whole numbers in a range."""

    def parse(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= (int(text) if high is None else high):
            allowed = f"of {low} and more" if high is None else f"from {low} to {high}"
            raise argparse.ArgumentTypeError(f"{text!r}; allowed are whole numbers {allowed}")
        return int(text)

    return parse


def prepare_log_folder(folder: str) -> str:
    """Makes the folder of --log_dir, and removes the state files of processes that have ended.

    Raises:
      ArgumentTypeError: logs cannot be written, or a process that has its log there still runs.
    """
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot make {folder}: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise argparse.ArgumentTypeError(f"{folder} is not writable")
    files = [StateFile(process.state) for process in state.started_in(folder)]
    for record in [file.read() for file in files]:
        if record and record.is_alive:
            which = f"process {record.pid} ({record.label}), whose log is in {folder}"
            what = f"terngrad.launch --log_dir={folder} --stop ends it"
            raise argparse.ArgumentTypeError(f"{which}, still runs; {what}")
    for file in files:
        file.clear()
    return folder


def with_log_files(processes: Sequence[Process], folder: str | None) -> list[Process]:
    """Returns processes with a log and a state file each in a folder, if there is one."""
    ranks: collections.Counter[str] = collections.Counter()
    found = []
    for process in processes:
        job = "ps" if process.is_ps else "worker"
        path = os.path.join(folder or "", f"{job}_{ranks[job]}")
        ranks[job] += 1
        files = {"log": f"{path}.log", "state": f"{path}.json"} if folder else {}
        found.append(dataclasses.replace(process, **files))
    return found


_POLL_SECS = 0.1


class Event(NamedTuple):
    """A process has ended, or the launcher was asked to end."""

    secs: float  # when, on the monotonic clock
    status: int  # exit status of the process; for a request: of the launcher
    text: str = ""  # for the user
    label: str = ""  # of the process; "" = a request


class Requests:
    """Requests to end. They are noted, not raised, so that none interrupts the start of a worker.

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

    def wait(self, secs: float, seen: Callable[[], bool] = lambda: False) -> bool:
        """Waits for a request, or one that `seen` finds, at most; returns whether there is one."""
        deadline = time.monotonic() + secs
        while not (is_asked := bool(self.events) or seen()):
            if (left := deadline - time.monotonic()) <= 0:
                break
            time.sleep(min(_POLL_SECS, left))
        return is_asked

    def must_end_at_once(self) -> bool:
        """Whether Ctrl-C came twice. Other signals, such as SIGHUP, may arrive twice anyway."""
        return [event.status for event in self.events].count(128 + signal.SIGINT) > 1


class Output:
    """Standard output. If it or stderr is closed, that is a request to end.

    A full disk costs only lines.
    """

    def __init__(self, requests: Requests) -> None:
        self._requests, self._is_closed = requests, False
        outputs.protect()
        if sys.stdout is None:  # as with >&-
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the program ends
        # Lines may hold characters that its encoding lacks.
        sys.stdout.reconfigure(errors="replace")
        self._console = rich.console.Console(highlight=False, soft_wrap=True)

    def show(self, line: str | rich.text.Text) -> None:
        """Prints a line; from any thread."""
        self._console.print(line)
        if outputs.lost_by() and not self._is_closed:
            self._is_closed = True
            self._requests.note(signal.SIGPIPE)


def end_program(status: int) -> NoReturn:
    """Ends this program, even if a thread is blocked in writing to a closed output."""
    if threading.active_count() > 1:
        os._exit(status)
    sys.exit(status)
