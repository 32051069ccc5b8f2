"""Starts the processes of a cluster on this machine and waits for their end.

The processes share a secret, by which they know each other: see `run_secret`. Each line of their
output begins with the process' label. The docstrings of the programs that use
this, `inception.launch` and `terngrad.launch`, say what ends a run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO

import rich.text

from terngrad import allocator
from terngrad.cluster import run_secret
from terngrad.cluster.membership import LOST_STATUS
from terngrad.launcher import state
from terngrad.launcher.restarts import MOST_IN_A_ROW, SHORT_SECS, Restarts
from terngrad.launcher.state import StateFile
from terngrad.launcher.terminal import Event, Output, Requests

_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")
_LOOK_SECS = 0.1
# How doubtful it is that a process with this exit status failed by itself; of others it is not.
_DOUBTS = {1: 1, LOST_STATUS: 2}
GRACE_SECS = 90.0  # for the others to notice a failure, or to save, before they are killed
_ERROR_SECS = 15.0  # for a process to end by itself after it has shown an error
_PS_GRACE_SECS = 5.0  # for a ps to end by itself after the workers
_ERROR = "Traceback (most recent call last):"
_SAVED = re.compile(r"(?:model\.ckpt-|not saved since step )(\d+)")


@dataclasses.dataclass(frozen=True)
class Process:
    """A process of a run.

    Attributes:
      index: position among all processes.
      label: first word of its output lines.
      command: program and arguments.
      host: name of its machine; "" = this one.
      environment: variables to set in addition to those of this process.
      is_ps: whether it is a parameter server.
      is_remote: whether the secret and signals are lines of its standard input, see `attended`.
      pause_secs: before it is started.
      is_shown: whether all its lines are shown, and not only those of its standard error.
      log: file to which all its lines are added; "" = none. Beside it is the process' `StateFile`.
    """

    index: int
    label: str
    command: Sequence[str]
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    is_ps: bool = False
    is_remote: bool = False
    pause_secs: float = 0.0
    is_shown: bool = True
    log: str = ""
    host: str = ""


def make_log_folder(folder: str) -> None:
    """Makes the folder of --log_dir, and removes the state files of processes that have ended.

    Raises:
      ValueError: logs cannot be written, or a process that has its log there still runs.
    """
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--log_dir: cannot make {folder}: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise ValueError(f"--log_dir: {folder} is not writable")
    found = [(file, record) for file in state.files_in(folder) if (record := file.read())]
    for _, record in found:
        if record.is_alive:
            which = f"process {record.pid} ({record.label}), whose log is in {folder}"
            what = f"terngrad.launch --log_dir={folder} --stop ends it"
            raise ValueError(f"--log_dir: {which}, still runs; {what}")
    for file, _ in found:
        file.clear()


def with_log(process: Process, folder: str, workers: int) -> Process:
    """Returns a process with a log in a folder, if that is not ""; parameter servers come last."""
    rank = process.index - workers if process.is_ps else process.index
    name = f"{'ps' if process.is_ps else 'worker'}_{rank}.log"
    return dataclasses.replace(process, log=os.path.join(folder, name) if folder else "")


class StartError(ValueError):
    """A process cannot be started; the message says why."""


class Run:
    """One run of a cluster."""

    def __init__(
        self,
        members: Sequence[Process],
        restarts: int,
        requests: Requests,
        output: Output,
        *,
        notice_secs: float | None = None,
        relays: bool = False,
        is_elastic: bool = True,
        as_shell: bool = False,
    ) -> None:
        """Starts nothing yet.

        Args:
          members: the processes.
          restarts: how many processes that were killed are started again; only beside a ps.
          requests: to end.
          output: gets the lines of all processes.
          notice_secs: time after a failure in which the others may end by themselves before they
            are asked to; None = they are not asked.
          relays: whether workers get the signal that asks to end, and not always SIGTERM.
          is_elastic: whether the death of one does not end the others, if a ps is among them.
          as_shell: whether the status of a killed process is 128 + the signal's number, and not 1.
        """
        self._is_asked = False
        self._requests = requests
        self._output = output
        self._secret = run_secret.of_run()
        self._members = members
        self._notice_secs = notice_secs
        self._relays = relays
        self._as_shell = as_shell
        self._to_ask: list[subprocess.Popen] = []  # to end, though they have shown an error
        self._hurried_at = math.inf  # when a failure of another asked the workers to end
        self._outlive_others = is_elastic and any(member.is_ps for member in members)
        self._restarts = Restarts(restarts)
        self._killed: list[tuple[float, Process]] = []  # waiting for the moment of their restart
        self._started: dict[subprocess.Popen, Process] = {}
        self._faulty: list[str] = []  # processes that have shown an error, the first one first
        self._saved: dict[str, str] = {}  # by label: step of the last save that the process told
        self._servers_asked = False  # whether the parameter servers were asked to end
        self._threads: list[threading.Thread] = []
        self._ends: list[Event] = []
        self._failure: Event | None = None  # that decides the exit status
        self._named = ""  # label of the failed process that a line has named

    @property
    def asked(self) -> bool:
        """Whether processes were asked to save and end, by this launcher or by another's --stop."""
        files = [StateFile.beside(member.log) for member in self._members if member.log]
        return self._is_asked or any(file.is_stopping for file in files)

    def run(self) -> int:
        """Runs the processes; returns 0, or the status of the first failure or request to end.

        A process may notice the end of another before this run does, so a failure counts as the
        first if all earlier ones may have come from lost processes.

        Raises:
          StartError: a process cannot be started; those that were are killed.
        """
        try:
            for member in self._members:
                self._requests.wait(member.pause_secs)
                self._start(member)
            status = self._wait()
        finally:
            for process in self._started:
                process.kill()
            self._show_rest()
        self._name_failure()
        return status

    def _start(self, member: Process) -> None:
        if self._requests.events:
            return
        self._restarts.begun(member.label)
        try:
            log = open(member.log or os.devnull, "a", 1, encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            raise StartError(f"cannot write {member.log}: {error.strerror}") from None
        try:
            process = subprocess.Popen(
                member.command,
                env=self._environment(member),
                stdin=subprocess.PIPE if member.is_remote else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if member.is_shown else subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,  # Ctrl-C reaches this process alone, which passes it on
            )
        except OSError as error:
            raise StartError(f"cannot start {member.command[0]}: {error.strerror}") from None
        self._started[process] = member
        if member.is_remote:
            _write(process, self._secret)
        _note_start(process, member)
        tasks = [(self._show, (member, process.stdout, log, member.is_shown))]
        if process.stderr:
            tasks.append((self._show, (member, process.stderr, log, True)))
        for target, args in [*tasks, (self._note_end, (process, member))]:
            thread = threading.Thread(target=target, args=args, daemon=True)
            thread.start()
            self._threads.append(thread)

    def _environment(self, member: Process) -> dict[str, str]:
        # Other users cannot read it, as they can arguments.
        secret = {run_secret.VARIABLE: self._secret}
        return allocator.with_huge_pages(os.environ) | secret | dict(member.environment)

    def _show(self, member: Process, stream: IO[str], log: IO[str], is_shown: bool) -> None:
        label, colour = member.label, _COLOURS[member.index % len(_COLOURS)]
        for line in stream:
            self._note_line(label, line)
            with contextlib.suppress(OSError):  # a full disk: the process must not wait for this
                log.write(line)
            if is_shown:
                self._output.show(rich.text.Text(f"[{label}] ", style=colour) + line.rstrip("\n"))

    def _note_line(self, label: str, line: str) -> None:
        if line.startswith(_ERROR) and label not in self._faulty:
            self._faulty.append(label)
        if found := _SAVED.search(line):
            self._saved[label] = found[1]

    def _note_end(self, process: subprocess.Popen, member: Process) -> None:
        code = process.wait()
        _note_status(member, 128 - code if code < 0 else code)
        was_killed = code < 0 or (member.is_remote and state.was_killed(code))
        if was_killed and self._outlive_others:
            if not self.asked:
                self._note_killed(member)
            code = 0
        if member.is_ps and self._servers_asked and code in (-signal.SIGTERM, 128 + signal.SIGTERM):
            code = 0  # as asked, after all workers have ended
        killed_status = 128 - code if self._as_shell else 1
        status = killed_status if code < 0 else code
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        if code == LOST_STATUS:
            how = "ended because of another"
        doubt = _DOUBTS.get(code, 0)
        text, now = f"{member.label} {how}", time.monotonic()
        self._ends.append(Event(now, status, text, doubt, member.label))

    def _note_killed(self, member: Process) -> None:
        name = member.label
        if (pause_secs := self._restarts.pause_secs(name)) is not None:
            self._killed.append((time.monotonic() + pause_secs, member))
            self._output.show(f"{name} was killed and is started again in {pause_secs:g} s.")
        elif self._restarts.is_left_out(name):
            runs = f"{MOST_IN_A_ROW} runs of less than {SHORT_SECS:g} s"
            self._output.show(f"{name} was killed and is left out after {runs}.")

    def _start_again(self) -> None:
        for due in list(self._killed):
            if time.monotonic() >= due[0] or self._requests.events:
                self._start(due[1])  # does nothing after a request to end
                self._killed.remove(due)

    def _wait(self) -> int:
        while True:
            all_ended = len(self._ends) == len(self._started)  # read before the failures
            all_ended = all_ended and not self._killed
            self._start_again()
            failures = [end for end in self._ends if end.status]
            first = min([*failures, *self._requests.events], default=None)
            if self._requests.events and not self._is_asked:
                self._ask_to_end()
            self._hurry(first)
            self._end_servers()
            hurry = min(self._requests.events, default=None) if self._outlive_others else first
            late = hurry and time.monotonic() > hurry.monotonic_secs + GRACE_SECS
            if late and not all_ended:
                self._tell_killed()
            if all_ended or late or self._requests.at_once():
                return self._status(first) if first else self._status_of_silence()
            time.sleep(_LOOK_SECS)

    def _status(self, first: Event) -> int:
        """Returns the status of the process that failed first by itself, and remembers it."""
        self._failure = self._blamed(first)
        return self._failure.status

    def _blamed(self, first: Event) -> Event:
        if first in self._requests.events:
            return first
        limits = [event.monotonic_secs for event in self._requests.events] + [self._hurried_at]
        own = [end for end in self._ends if end.status and end.monotonic_secs < min(limits)]
        blamed = min(own, key=lambda end: (end.doubt, end), default=first)
        if blamed.doubt < _DOUBTS[LOST_STATUS]:
            return blamed
        return self._faulty_end() or self._late_end() or blamed

    def _faulty_end(self) -> Event | None:
        """Returns the end, perhaps to come, of the first process that has shown its own error."""
        ends = {end.label: end for end in self._ends}
        for label in self._faulty:
            if label not in ends:
                return Event(time.monotonic(), 1, f"{label} has shown an error", label=label)
            if ends[label].status and ends[label].doubt < _DOUBTS[LOST_STATUS]:
                return ends[label]
        return None

    def _late_end(self) -> Event | None:
        """Returns the first end with a status that neither a signal nor a loss gives.

        Such a process is taken to have failed before it was asked to end, and to take long to.
        """
        ends = (end for end in self._ends if 1 < end.status < 128 and not end.doubt)
        return min(ends, default=None)

    def _tell_killed(self) -> None:
        """Names the workers that did not end in time."""
        for process in self._workers():
            if process.poll() is None:
                label = self._started[process].label
                step, is_chief = self._saved.get(label), self._started[process] is self._members[0]
                last = f"step {step}" if step else "its last checkpoint"
                unsaved = f"; not saved since {last}" if step or is_chief else ""
                why = f"did not end within {GRACE_SECS:g} s"
                self._output.show(f"{label} is killed because it {why}{unsaved}.")

    def _status_of_silence(self) -> int:
        """Returns 0, unless all workers were killed and none reported a failure."""
        return 0 if any(process.returncode == 0 for process in self._workers()) else 1

    def _ask_to_end(self) -> None:
        self._is_asked = True
        asked = self._requests.events[0].status - 128
        number = asked if self._relays and asked != signal.SIGPIPE else signal.SIGTERM
        for process in self._workers():  # the parameter servers end after them
            _send(process, number)

    def _hurry(self, failure: Event | None) -> None:
        """Asks the others to end that have not ended by themselves after a failure."""
        if self._notice_secs is None or failure is None or self._is_asked:
            return
        if self._hurried_at < math.inf:
            if time.monotonic() > self._hurried_at + _ERROR_SECS:
                for process in self._to_ask:
                    _send(process, signal.SIGTERM)
                self._to_ask = []
            return
        if time.monotonic() > failure.monotonic_secs + self._notice_secs:
            blamed = self._blamed(failure)
            self._hurried_at = time.monotonic()
            running = [process for process in self._workers() if process.poll() is None]
            # Who has shown an error may end by itself.
            self._to_ask = [each for each in running if self._started[each].label == blamed.label]
            if left := [each for each in running if each not in self._to_ask]:
                self._output.show(f"{blamed.text}: the others are asked to end.")
                self._named = blamed.label
            for process in left:
                _send(process, signal.SIGTERM)

    def _name_failure(self) -> None:
        """Names the process that failed, if no line has done so."""
        is_silent = self._notice_secs is None or self._requests.events or len(self._members) < 2
        if self._failure and self._failure.label != self._named and not is_silent:
            self._output.show(f"{self._failure.text}.")

    def _end_servers(self) -> None:
        """Ends parameter servers that no worker ever reached; the others end with the workers."""
        servers = [process for process, member in self._started.items() if member.is_ps]
        if self._killed or self._servers_asked or not servers:
            return
        if any(process.poll() is None for process in self._workers()):
            return
        if self._ends and time.monotonic() > self._ends[-1].monotonic_secs + _PS_GRACE_SECS:
            self._servers_asked = True
            for process in servers:
                _send(process, signal.SIGTERM)

    def _workers(self) -> list[subprocess.Popen]:
        return [process for process, member in self._started.items() if not member.is_ps]

    def _show_rest(self) -> None:
        """Waits for the last output lines, unless the user asked twice to end."""
        for thread in self._threads:
            thread.join(_LOOK_SECS)
            while thread.is_alive() and not self._requests.at_once():
                thread.join(_LOOK_SECS)


def _note_start(process: subprocess.Popen, member: Process) -> None:
    """Lets others show and stop a process, also without this launcher."""
    if not member.log:
        return
    with contextlib.suppress(OSError):  # a full disk: the training goes on
        file = StateFile.beside(member.log)
        file.clear()
        size = os.path.getsize(member.log)
        own = (member.label, member.host, member.command, member.log, size, process.pid)
        file.write(state.new_record(*own))


def _note_status(member: Process, status: int) -> None:
    with contextlib.suppress(OSError):
        if member.log and (record := StateFile.beside(member.log).read()):
            StateFile.beside(member.log).write(dataclasses.replace(record, status=status))


def _send(process: subprocess.Popen, number: int) -> None:
    """Sends a signal to a process, also if that runs on another machine."""
    if process.stdin is None:
        process.send_signal(number)
    else:
        _write(process, str(int(number)))


def _write(process: subprocess.Popen, line: str) -> None:
    with contextlib.suppress(OSError):  # it has ended
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
