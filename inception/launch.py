"""Starts all workers of a distributed training on this machine.

python -m inception.launch [--max_restarts=N] [--ps=N] WORKERS PROGRAM FLAG...
python -m inception.launch 2 inception.mnist_distributed_train --data_dir=DIR --grad_bits=1

Each line begins with its worker. Ctrl-C, SIGTERM, SIGHUP and a closed output let all workers save
and end; the exit status is then 128 + the signal's number, for the output SIGPIPE's. A second
Ctrl-C kills them. Else the exit status is that of the worker which failed first. With
--max_restarts a failed training is started again from its last checkpoint. With --ps the workers
exchange through so many parameter servers, which are started with them and end with them; a process
that is killed or fails then ends the others only as their flags say, and --max_restarts brings one
that is killed back, so many times in all.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

import rich.console
import rich.text

from terngrad.cluster.ports import free_ports

_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")
_LOOK_SECS = 0.1
_GRACE_SECS = 90.0  # for the others to notice a failure, or to save, before they are killed
_PS_GRACE_SECS = 5.0  # for a ps to end by itself after the workers


@dataclasses.dataclass
class _Arguments:
    workers: int
    command: list[str]
    max_restarts: int = 0
    ps: int = 0


@dataclasses.dataclass(frozen=True)
class Member:
    """A process of a cluster.

    Attributes:
      index: among all of them.
      label: what its lines begin with.
      flags: that make it this one.
      is_ps: it is a parameter server.
    """

    index: int
    label: str
    flags: list[str]
    is_ps: bool = False


@dataclasses.dataclass(frozen=True, order=True)
class _Event:
    """A worker's end or a request to end all; the earliest that is no success says how to exit."""

    monotonic_secs: float
    status: int


def main(argv: Sequence[str]) -> int:
    """Runs the workers; returns the exit status."""
    arguments = _parse(argv)
    requests = _Requests()
    requests.listen()
    output = _Output(requests)
    for attempt in range(1 if arguments.ps else arguments.max_restarts + 1):
        if attempt:
            output.show(f"Restart {attempt} of {arguments.max_restarts}, from the last checkpoint.")
        workers = _Workers(requests, output)
        status = workers.run(arguments)
        if status == 0 or status > 128 or workers.asked:  # done, or it was asked to end
            break
    return status


def worker_flags(workers: int) -> list[list[str]]:
    """Flags that make each worker one of a cluster on this machine."""
    *ports, control = free_ports(workers + 1)
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    common = [f"--worker_hosts={hosts}", f"--control_port={control}"]
    return [[*common, f"--task_id={i}"] for i in range(workers)]


def members(workers: int, ps: int) -> list[Member]:
    """The workers, and after them so many ps, of a cluster on this machine."""
    if not ps:
        return [Member(i, str(i), flags) for i, flags in enumerate(worker_flags(workers))]
    addresses = [f"127.0.0.1:{port}" for port in free_ports(ps + workers)]
    hosts = [f"--ps_hosts={','.join(addresses[:ps])}", f"--worker_hosts={','.join(addresses[ps:])}"]
    own = lambda job, i: [*hosts, f"--job_name={job}", f"--task_id={i}"]
    return [
        *(Member(i, str(i), own("worker", i)) for i in range(workers)),
        *(Member(workers + i, f"ps {i}", own("ps", i), is_ps=True) for i in range(ps)),
    ]


def _parse(argv: Sequence[str]) -> _Arguments:
    rest = list(argv)
    if rest[:1] in (["--help"], ["-h"]):
        print(__doc__)
        sys.exit(0)
    numbers = {"--max_restarts": 0, "--ps": 0}
    while rest and (name := rest[0].partition("=")[0]) in numbers:
        text = rest.pop(0).partition("=")[2] or (rest.pop(0) if rest else "")
        numbers[name] = _whole_number(text, name, 0)
    if len(rest) < 2:
        sys.exit(f"launch: needs the number of workers and a program\n{__doc__.splitlines()[2]}")
    if rest[1].startswith("-"):
        sys.exit(f"launch: PROGRAM is {rest[1]!r}; launch's own flags stand before WORKERS")
    return _Arguments(_whole_number(rest[0], "WORKERS", 1), rest[1:], *numbers.values())


def _whole_number(text: str, name: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        sys.exit(f"launch: {name} is {text!r}; allowed are whole numbers of {least} and more")
    return int(text)


class _Requests:
    """Requests to end. They are noted, never raised: the start of a worker is not cut in two."""

    def __init__(self) -> None:
        self.events: list[_Event] = []

    def listen(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
                signal.signal(number, lambda number, frame: self.note(number))

    def note(self, number: int) -> None:
        self.events.append(_Event(time.monotonic(), 128 + number))

    def at_once(self) -> bool:
        """Whether Ctrl-C came twice; other signals may come twice by themselves, as SIGHUP does."""
        return [event.status for event in self.events].count(128 + signal.SIGINT) > 1


class _Output:
    """Standard output; when it can no longer be written, that is a request to end."""

    def __init__(self, requests: _Requests) -> None:
        self._requests = requests
        sys.stdout.reconfigure(errors="replace")  # the workers' lines may have what it lacks
        self._console = rich.console.Console(highlight=False, soft_wrap=True)

    def show(self, line: str | rich.text.Text) -> None:
        try:
            self._console.print(line)
        except (OSError, SystemExit):  # rich makes a closed pipe a SystemExit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            self._requests.note(signal.SIGPIPE)


class _Workers:
    """The workers of one attempt."""

    def __init__(self, requests: _Requests, output: _Output) -> None:
        self.asked = False  # to save and end
        self._requests = requests
        self._output = output
        self._command: list[str] = []
        self._outlive_others = False  # what ends the others is not decided here
        self._restarts = 0  # that are left, of processes that were killed
        self._killed: list[Member] = []  # that are to be started again
        self._processes: list[subprocess.Popen] = []
        self._servers: list[subprocess.Popen] = []
        self._are_told = False  # the servers, to end
        self._threads: list[threading.Thread] = []
        self._ends: list[_Event] = []

    def run(self, arguments: _Arguments) -> int:
        """0, or the status of the first failure or request to end."""
        self._command = arguments.command
        self._outlive_others = arguments.ps > 0
        self._restarts = arguments.max_restarts
        try:
            for member in members(arguments.workers, arguments.ps):
                self._start(member)
            return self._wait()
        finally:
            for process in self._processes:
                process.kill()
            self._show_rest()

    def _start(self, member: Member) -> None:
        if self._requests.events:
            return
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", *self._command, *member.flags],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # Ctrl-C reaches this process alone, which passes it on
        )
        self._processes.append(process)
        if member.is_ps:
            self._servers.append(process)
        colour = _COLOURS[member.index % len(_COLOURS)]
        shown = (member.label, colour, process)
        for target, args in ((self._show, shown), (self._note_end, (process, member))):
            thread = threading.Thread(target=target, args=args, daemon=True)
            thread.start()
            self._threads.append(thread)

    def _show(self, label: str, colour: str, process: subprocess.Popen) -> None:
        for line in process.stdout:
            self._output.show(rich.text.Text(f"[{label}] ", style=colour) + line.rstrip("\n"))

    def _note_end(self, process: subprocess.Popen, member: Member) -> None:
        code = process.wait()
        was_killed = code < 0
        if was_killed and self._outlive_others:
            if self._restarts and not self.asked:
                self._restarts -= 1
                self._killed.append(member)
            code = 0
        status = 1 if code < 0 else code  # killed: a failure like any other
        self._ends.append(_Event(time.monotonic(), status))

    def _start_again(self) -> None:
        while self._killed:
            member = self._killed.pop()
            self._output.show(f"{member.label} was killed, and is started again.")
            self._start(member)

    def _wait(self) -> int:
        while True:
            all_ended = len(self._ends) == len(self._processes)  # before the failures are read
            all_ended = all_ended and not self._killed
            self._start_again()
            failures = [end for end in self._ends if end.status]
            first = min([*failures, *self._requests.events], default=None)
            if self._requests.events and not self.asked:
                self._ask_to_end()
            self._end_servers()
            hurry = min(self._requests.events, default=None) if self._outlive_others else first
            late = hurry and time.monotonic() > hurry.monotonic_secs + _GRACE_SECS
            if all_ended or late or self._requests.at_once():
                return first.status if first else self._status_of_silence()
            time.sleep(_LOOK_SECS)

    def _status_of_silence(self) -> int:
        """0, unless all workers were killed and none said that it had failed."""
        return 0 if any(process.returncode == 0 for process in self._workers()) else 1

    def _ask_to_end(self) -> None:
        self.asked = True
        for process in self._workers():  # a ps ends after them
            process.terminate()

    def _end_servers(self) -> None:
        """Ends the ps that the workers have not ended with themselves, as they never reached it."""
        if self._killed or self._are_told or not self._servers:
            return
        if any(process.poll() is None for process in self._workers()):
            return
        if self._ends and time.monotonic() > self._ends[-1].monotonic_secs + _PS_GRACE_SECS:
            self._are_told = True
            for process in self._servers:
                process.terminate()

    def _workers(self) -> list[subprocess.Popen]:
        return [process for process in self._processes if process not in self._servers]

    def _show_rest(self) -> None:
        """Waits for the last lines to be written, unless all shall end at once."""
        for thread in self._threads:
            thread.join(_LOOK_SECS)
            while thread.is_alive() and not self._requests.at_once():
                thread.join(_LOOK_SECS)


if __name__ == "__main__":
    exit_status = main(sys.argv[1:])
    if threading.active_count() > 1:  # a write that nobody reads would hold up the exit, too
        os._exit(exit_status)
    sys.exit(exit_status)
