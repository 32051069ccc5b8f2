"""Processes of a training that a benchmark watches and disturbs."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import IO

from inception.flags.table import refuse

_LINES = 200  # of each process, shown if the benchmark fails


class Output:
    """The output of a process, and the times of its steps.

    Attributes:
      pid: process id; 0 = not known yet.
      rank: the last one that it printed, if ranks change; -1 = none.
      started: when it was started.
      steps: moments of its steps.
      checksums: number and checksum of the weights of each step, where it prints them.
      lines: the last ones of its other output.
    """

    def __init__(self, open_output: Callable[[], IO[str]]) -> None:
        self.pid, self.rank = 0, -1
        self.started = time.monotonic()
        self.steps: list[float] = []
        self.checksums: list[tuple[int, str]] = []
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, args=(open_output,), daemon=True)
        self._reader.start()

    def _read(self, open_output: Callable[[], IO[str]]) -> None:
        with open_output() as output:
            for line in output:
                if found := re.match(r"step (\d+)(?: (\w+))?$", line):
                    self.steps.append(time.monotonic())
                    if found[2]:
                        self.checksums.append((int(found[1]), found[2]))
                elif found := re.match(r"process (\d+) has rank (\d+)$", line):
                    self.pid, self.rank = int(found[1]), int(found[2])
                else:
                    self.lines = [*self.lines[1 - _LINES :], line]

    def steps_after(self, moment: float) -> int:
        """Returns how many steps were made after a moment."""
        return sum(step > moment for step in self.steps)

    def first_step_after(self, moment: float) -> float:
        """Returns when the first step after a moment was made."""
        return next(step for step in self.steps if step > moment)

    def waits(self, begin: float, until: float = math.inf) -> list[float]:
        """Returns the seconds from each step to the next one.

        Only of pairs whose first step was at `until` or before, and whose second was after `begin`.
        """
        pairs = pairwise(self.steps)
        return [after - before for before, after in pairs if after > begin and before <= until]


class Process(Output):
    """A process of the training, and the times of its steps."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str]) -> None:
        self._run = subprocess.Popen(
            command,
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        output = self._run.stdout
        assert output
        super().__init__(lambda: output)
        self.pid = self._run.pid

    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._run.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Sends a signal; waits for the end of a process that it kills."""
        self._run.send_signal(number)
        if number == signal.SIGKILL:
            self._run.wait()

    def close(self) -> None:
        """Kills the process if it runs."""
        self._run.kill()
        self._run.wait()


class LaunchedProcess(Output):
    """A process that horovodrun starts, and that writes to a pipe of its own."""

    def __init__(self, pipe: Path) -> None:
        os.mkfifo(pipe)
        super().__init__(pipe.open)

    def is_running(self) -> bool:
        """Whether the process has printed its id and has not ended."""
        return self.pid > 0 and self._reader.is_alive()

    def send(self, number: signal.Signals) -> None:
        """Sends a signal; waits for the end of a process that it kills."""
        os.kill(self.pid, number)
        if number == signal.SIGKILL:
            self._reader.join()

    def close(self) -> None:
        """Kills the process if it runs."""
        if self.is_running():
            with contextlib.suppress(ProcessLookupError):
                self.send(signal.SIGKILL)


def check_can_cut(faults: Sequence[str]) -> None:
    """Raises ValueError if connections are to be cut and this process cannot."""
    if "cut" in faults and (os.geteuid() or not shutil.which("ss")):
        raise refuse("faults", "cut", "needs root and the program ss")


def cut_connections(pid: int, port: int | None = None) -> int:
    """Resets the TCP connections of a process, all or those to a port; returns their number."""
    run = lambda *words: subprocess.run(["ss", *words], capture_output=True, text=True, check=True)
    chosen = ["state", "established", *(["dport", "=", f":{port}"] if port else [])]
    lines = run("-Htnp", *chosen).stdout.splitlines()
    own = [line.split()[2] for line in lines if f"pid={pid}," in line]
    for address in own:
        run("-HtnK", *chosen, "sport", "=", f":{address.rpartition(':')[2]}")
    return len(own)


def resident_mb(pid: int) -> float | None:
    """Returns the resident memory of a process in megabytes; None if it has ended."""
    with contextlib.suppress(OSError):
        found = re.search(r"VmRSS:\s*(\d+)", Path(f"/proc/{pid}/status").read_text())
        return int(found[1]) / 1024 if found else None
    return None
