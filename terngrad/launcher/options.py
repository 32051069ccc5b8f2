"""What the command lines of `inception.launch` and `terngrad.launch` have in common."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

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


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Returns a parser of whole numbers in a range."""

    def parse(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= (int(text) if most is None else most):
            allowed = f"of {least} and more" if most is None else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"{text!r}; allowed are whole numbers {allowed}")
        return int(text)

    return parse


def log_folder(folder: str) -> str:
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


def with_logs(processes: Sequence[Process], folder: str | None) -> list[Process]:
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
