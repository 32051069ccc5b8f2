"""Starts the processes of a cluster and waits for their end.

The processes share a secret, by which they know each other: see `run_secret`. Each line of their
output begins with the process' label. The docstrings of the programs that use this,
`inception.launch` and `terngrad.launch`, say what ends a run.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import IO

import rich.text

from terngrad import allocator
from terngrad.cluster import run_secret
from terngrad.cluster.membership import LOST_STATUS
from terngrad.launcher import hosts, state
from terngrad.launcher.process import GRACE_SECS, REACHED, Process, Restarts
from terngrad.launcher.state import StateFile
from terngrad.launcher.terminal import Event, Output, Requests

_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")
_POLL_SECS = 0.1
_KILL_SECS = 2.0  # for a signal to kill a process on another machine
# Exit statuses of processes that may have ended because of another: the higher, the likelier.
_UNCERTAINTY = {1: 1, LOST_STATUS: 2}
_PS_GRACE_SECS = 5.0  # for a ps to end by itself after the workers
# sshd drops some of more than ten connections of one moment that are not logged in yet.
_LOGINS_AT_ONCE = 8
_LOGIN_PAUSE_SECS = 0.5
_ERROR = "Traceback (most recent call last):"
# A coordinator's lines of a view, see `decisions.in_words`, and that there are too few workers. The
# text of a progress bar may stand before them.
_VIEW = re.compile(r"Workers? (\d+(?:(?:, | and )\d+)*) trains? from step \d+ on")
_WAITS = "needs more workers, and waits for them"
_SAVED = re.compile(r"(?:model\.ckpt-|not saved since step )(\d+)")


class StartError(ValueError):
    """A process cannot be started; the message says why."""


class Run:
    """One run of a cluster."""

    def __init__(
        self,
        processes: Sequence[Process],
        requests: Requests,
        output: Output,
        *,
        restarts: int = 0,
        tolerates_failures: bool = False,
        notice_secs: float | None = None,
        relays: bool = False,
        shown: int | None = None,
    ) -> None:
        """Starts nothing yet.

        Args:
          processes: the chief first. Those with a host are commands of ssh with
            `remote_command`.
          requests: the signals that ask this launcher to end.
          output: gets the lines of all processes.
          restarts: how many processes that were killed are started again, if `tolerates_failures`.
          tolerates_failures: whether the others go on without processes that are killed or fail,
            and without hosts that are lost.
          notice_secs: time after a failure in which the others may end by themselves before they
            are asked to; None = they are not asked.
          relays: whether workers get the same signal that this launcher got, instead of SIGTERM.
          shown: index of the process whose output is shown; of the others only standard error is.
            None = all.

        Raises:
          StartError: the secret that the user has set is not allowed.
        """
        self._processes, self._requests, self._output = processes, requests, output
        self._files = {each.label: StateFile(each.state) for each in processes if each.state}
        self._restarts, self._tolerates_failures = Restarts(restarts), tolerates_failures
        self._notice_secs, self._relays, self._shown = notice_secs, relays, shown
        try:
            self._secret = run_secret.of_run()
        except ValueError as error:
            raise StartError(str(error)) from None
        self._running: dict[subprocess.Popen, Process] = {}
        self._due: list[tuple[float, Process]] = []  # with the moment of their restart
        self._ends: list[Event] = []  # the first one first
        self._threads: list[threading.Thread] = []
        self._reached: set[str] = set()  # labels of processes on hosts to which ssh has led
        self._with_error: list[str] = []  # labels of processes with an error, in their order
        self._saved: dict[str, str] = {}  # by label: last step of which the process said so
        self._successful: str | None = None  # rank of the first worker that ended with 0
        self._views: dict[str, list[str]] = {}  # by rank: those with which a worker trains, if any
        self._started_again: set[str] = set()  # labels
        self._latecomers: set[str] = set()  # labels of those that came when the training was done
        self._lost_at_end = False  # whether a worker was killed after that, perhaps while it saved
        self._is_asked = False
        self._stopped: set[str] = set()  # labels of processes to which a --stop was passed on
        self._others_asked_at = math.inf  # because of a failure
        self._workers_ended_at = time.monotonic()  # or later
        self._servers_asked = False
        self._named = ""  # label of the failed process that a line has named

    def was_asked(self) -> bool:
        """Whether processes were asked to save and end, by this launcher or by another's --stop."""
        return self._is_asked or any(file.is_stopping for file in self._files.values())

    def run(self) -> int:
        """Runs the processes; returns 0, or the exit status of a failure or request to end.

        Raises:
          StartError: a process cannot be started; those that were are killed.
        """
        try:
            pauses = login_pauses([process.host for process in self._processes])
            for process, pause_secs in zip(self._processes, pauses, strict=True):
                self._requests.wait(pause_secs)
                self._start(process)
            cause = self._wait()
        finally:
            self._kill()
            for thread in self._threads:
                self._await(thread)
        if cause is None:  # no process failed, but all workers may have been killed
            return 0 if self._successful and not self._lost_at_end else 1
        is_silent = self._notice_secs is None or self._requests.events or len(self._processes) < 2
        if not is_silent and cause.label != self._named:
            self._say(f"{cause.text}.")
        return cause.status

    def _kill(self) -> None:
        """Kills what still runs, with children, which would keep their output open."""
        remote = [started for started, process in self._running.items() if process.host]
        for started in remote:  # first there; its ssh then ends
            _send(started, signal.SIGKILL)
        deadline = time.monotonic() + _KILL_SECS
        for started in remote:
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.wait(max(0.0, deadline - time.monotonic()))
        for started in self._running:
            state.send(started.pid, signal.SIGKILL)
        for started, process in self._running.items():
            self._note_status(process, started.wait())

    def _start(self, process: Process) -> None:
        if self._requests.events:
            return
        self._restarts.note_start(process.label)
        is_shown = self._shown in (None, self._processes.index(process))
        # Other users cannot read it, as they can arguments.
        secret = {run_secret.VARIABLE: self._secret}
        try:
            log = open(process.log or os.devnull, "a", 1, encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            raise StartError(f"cannot write {process.log}: {error.strerror}") from None
        try:
            started = subprocess.Popen(
                process.command,
                env=allocator.with_huge_pages(os.environ) | secret | dict(process.environment),
                stdin=subprocess.PIPE if process.host else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if is_shown else subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,  # Ctrl-C reaches this program alone, which passes it on
            )
        except OSError as error:
            raise StartError(f"cannot start {process.command[0]}: {error.strerror}") from None
        self._running[started] = process
        if process.host:
            _write(started, self._secret)
        with contextlib.suppress(OSError):  # a full disk: the training goes on
            if file := self._files.get(process.label):
                file.note_start(process, log.tell(), started.pid)
                if file.is_stopping and not process.host:  # since the last run of the same files
                    _send(started, signal.SIGTERM)
        for stream, shows in ((started.stdout, is_shown), (started.stderr, True)):
            if stream:
                arguments = (process, stream, log, shows)
                thread = threading.Thread(target=self._show, args=arguments, daemon=True)
                thread.start()
                self._threads.append(thread)

    def _show(self, process: Process, stream: IO[str], log: IO[str], is_shown: bool) -> None:
        label = process.label
        colour = _COLOURS[self._processes.index(process) % len(_COLOURS)]
        for line in stream:
            if process.host and line.rstrip().endswith(REACHED):  # start-up files may print
                self._reached.add(label)
                continue
            if line.startswith(_ERROR) and label not in self._with_error:
                self._with_error.append(label)
            if found := _SAVED.search(line):
                self._saved[label] = found[1]
            if found := _VIEW.search(line):
                members = re.findall(r"\d+", found[1])
                self._views |= dict.fromkeys(members, members)
            elif _WAITS in line:
                self._views[_rank(process)] = []
            with contextlib.suppress(OSError):  # a full disk: the process must not wait for this
                log.write(line)
            if is_shown:
                self._output.show(rich.text.Text(f"[{label}] ", style=colour) + line.rstrip("\n"))

    def _wait(self) -> Event | None:
        """Waits until all have ended or are to be killed; returns what the status comes from."""
        while True:
            self._note_ends()
            self._pass_on_stop()
            self._start_due()
            self._end_latecomers()
            requests = self._requests.events
            failures = [end for end in self._ends if end.status]
            first = min([*failures[:1], *requests[:1]], key=lambda event: event.secs, default=None)
            if requests and not self._is_asked:
                self._ask_to_end(requests[0].status - 128)
            if first and not self._is_asked:
                self._ask_others(first)
            self._end_servers()
            since = (requests[0] if requests else None) if self._tolerates_failures else first
            is_late = since and time.monotonic() > since.secs + GRACE_SECS
            if not (self._running or self._due) or is_late or self._requests.must_end_at_once():
                if is_late:
                    self._name_killed()
                return self._cause(first) if first else None
            time.sleep(_POLL_SECS)

    def _note_ends(self) -> None:
        for started, process in list(self._running.items()):
            # Taken first: a user who sees that the process has ended may then ask this run to end.
            secs = time.monotonic()
            if (code := started.poll()) is None:
                continue
            del self._running[started]
            if not process.host:  # its children, which would keep its output open
                state.send(started.pid, signal.SIGKILL)
            status, label = state.exit_status(code), process.label
            if status == 0 and not process.is_ps:
                self._successful = self._successful or _rank(process)
            self._note_status(process, code)
            name, how = state.signal_name(status), f"ended with {status}"
            if code < 0 or state.was_killed(status):
                how = f"was killed by {name}"
                if self._tolerates_failures:
                    self._note_killed(process)
                    continue
            is_lost = status == hosts.SSH_STATUS and label in self._reached
            if is_lost and self._tolerates_failures:
                # Not started again: cut off from here alone, it may run on and keep its port.
                if not self._is_asked_to_end():
                    self._say(f"{label} was lost: its ssh has ended. It is not started again.")
                continue
            if status == LOST_STATUS and self._is_done() and label in self._started_again:
                continue  # it came back when the training was done, and found nobody
            if process.is_ps and self._servers_asked and name == "SIGTERM":
                status = 0  # as asked, after all workers have ended
            if status == LOST_STATUS:
                how = "ended because of another"
            self._ends.append(Event(secs, status, f"{label} {how}", label))

    def _note_status(self, process: Process, code: int) -> None:
        with contextlib.suppress(OSError):
            if file := self._files.get(process.label):
                file.note_end(state.exit_status(code))

    def _is_ending(self) -> bool:
        """Whether no process is started again: those that a failure ends are not lost."""
        return self._is_asked_to_end() or self._is_done()

    def _is_asked_to_end(self) -> bool:
        return self.was_asked() or self._others_asked_at < math.inf

    def _is_done(self) -> bool:
        """Whether a training without ps is done, so that nobody is left to join.

        A ps stays, and tells those that come too late.
        """
        return bool(self._successful) and not any(each.is_ps for each in self._processes)

    def _note_killed(self, process: Process) -> None:
        if self._is_done() and process.label not in self._latecomers and not self.was_asked():
            self._lost_at_end = True
            self._say(
                f"{process.label} was killed when the training was done. It may not have saved."
            )
        if self._is_ending():
            return
        pause_secs, what = self._restarts.next_start(process.label)
        if pause_secs is not None:
            self._due.append((time.monotonic() + pause_secs, process))
        if what:
            self._say(f"{process.label} was killed and {what}.")

    def _start_due(self) -> None:
        for due in list(self._due):
            if self._is_ending() or time.monotonic() >= due[0]:
                self._due.remove(due)
                if not self._is_ending():
                    self._started_again.add(due[1].label)
                    self._views.pop(_rank(due[1]), None)
                    self._start(due[1])

    def _end_latecomers(self) -> None:
        """Kills workers that came back when the training was done: alone they would begin anew.

        Those are meant of which a line says that they train without the one that has finished, or
        wait for others. Any other may have joined again, and save the model now.
        """
        if not self._is_done():
            return
        for started in self._workers():
            process = self._running[started]
            view = self._views.get(_rank(process))
            is_late = process.label in self._started_again - self._latecomers
            if is_late and view is not None and self._successful not in view:
                self._latecomers.add(process.label)
                self._say(f"{process.label} came back when the training was done, and is ended.")
                _send(started, signal.SIGKILL)

    def _cause(self, first: Event) -> Event:
        """Returns the cause of the end of the run: a request, or the failure of a process.

        A process may notice the end of another before this run does, so an end with `LOST_STATUS`
        or 1 counts only if there is no other one. If all that have ended so far did so because of
        another process, that process has not ended yet: it has shown an error, or ends later with a
        status that neither a signal nor a loss gives.
        """
        if not first.label:
            return first
        asked_at = min([self._others_asked_at, *(each.secs for each in self._requests.events)])
        failures = [end for end in self._ends if end.status]
        doubt = lambda end: _UNCERTAINTY.get(end.status, 0)
        cause = min((end for end in failures if end.secs <= asked_at), key=doubt)
        if cause.status != LOST_STATUS:
            return cause
        ends = {end.label: end for end in self._ends}
        shown = lambda label: Event(math.inf, 1, f"{label} has shown an error", label)
        late = [ends.get(label) or shown(label) for label in self._with_error]
        late += [end for end in failures if 1 < end.status < 128]
        return next((end for end in late if end.status not in (0, LOST_STATUS)), cause)

    def _name_killed(self) -> None:
        """Names the workers that did not end in time."""
        for started in self._workers():
            process = self._running[started]
            step = self._saved.get(process.label)
            last = f"step {step}" if step else "its last checkpoint"
            unsaved = f"; not saved since {last}" if step or process is self._processes[0] else ""
            why = f"did not end within {GRACE_SECS:g} s"
            self._say(f"{process.label} is killed because it {why}{unsaved}.")

    def _ask_to_end(self, number: int) -> None:
        self._is_asked = True
        for started in self._workers():  # the parameter servers end after them
            _send(started, number if self._relays and number != signal.SIGPIPE else signal.SIGTERM)

    def _pass_on_stop(self) -> None:
        """Asks processes on other machines to end that another launcher's --stop has marked."""
        for started, process in self._running.items():
            label = process.label
            if process.host and label not in self._stopped and self._is_stopping(label):
                self._stopped.add(label)
                _send(started, signal.SIGTERM)

    def _is_stopping(self, label: str) -> bool:
        return label in self._files and self._files[label].is_stopping

    def _ask_others(self, first: Event) -> None:
        """Asks the others to end that have not ended by themselves after a failure."""
        if self._notice_secs is None or self._others_asked_at < math.inf:
            return
        if (now := time.monotonic()) > first.secs + self._notice_secs:
            cause = self._cause(first)
            self._others_asked_at = now
            # A process that has shown an error may end by itself.
            others = [each for each in self._workers() if self._running[each].label != cause.label]
            if others:
                self._say(f"{cause.text}: the others are asked to end.")
                self._named = cause.label
            for started in others:
                _send(started, signal.SIGTERM)

    def _end_servers(self) -> None:
        """Ends parameter servers that no worker ever reached; the others end with the workers."""
        if self._due or self._workers():
            self._workers_ended_at = time.monotonic()
        elif not self._servers_asked and time.monotonic() > self._workers_ended_at + _PS_GRACE_SECS:
            self._servers_asked = True
            for started in self._running:
                _send(started, signal.SIGTERM)

    def _workers(self) -> list[subprocess.Popen]:
        return [started for started, process in self._running.items() if not process.is_ps]

    def _say(self, line: str) -> None:
        thread = threading.Thread(target=self._output.show, args=(line,), daemon=True)
        thread.start()
        self._await(thread)

    def _await(self, thread: threading.Thread) -> None:
        """Waits for a thread that shows lines, unless the user asked twice to end."""
        thread.join(_POLL_SECS)
        while thread.is_alive() and not self._requests.must_end_at_once():
            thread.join(_POLL_SECS)


def _rank(process: Process) -> str:
    """Returns a worker's rank, the first word of its label."""
    return process.label.split()[0]


def login_pauses(hosts: Sequence[str]) -> list[float]:
    """Returns the pause before each process' start, in seconds; hosts may have a user."""
    names = [host.rpartition("@")[2] for host in hosts]
    many = [name and names[:i].count(name) >= _LOGINS_AT_ONCE for i, name in enumerate(names)]
    return [_LOGIN_PAUSE_SECS if each else 0.0 for each in many]


def _send(started: subprocess.Popen, number: int) -> None:
    """Sends a signal to a process, also if that runs on another machine."""
    if started.stdin is None:
        started.send_signal(number)
    else:
        _write(started, str(int(number)))


def _write(started: subprocess.Popen, line: str) -> None:
    with contextlib.suppress(OSError):  # it has ended
        started.stdin.write(f"{line}\n")
        started.stdin.flush()
