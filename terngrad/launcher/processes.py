"""Detached processes of this machine: starts, supervises, shows and stops them.

python -m terngrad.launcher.processes

Answers a launcher's request on a host, in the working copy. Standard input has one request, a line
of JSON: the name of a function and its arguments. Its answer follows the line `MARK`, as JSON.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import fcntl
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from terngrad.launcher import state
from terngrad.launcher.hosts import last_line
from terngrad.launcher.process import BYTES, MARK, Answer, Process, Restarts
from terngrad.launcher.state import Condition, Record, StateFile

_POLL_SECS = 0.1
_LOAD_SECS = 120.0  # for all processes to load their modules
_SETTLE_SECS = 2.0  # after that; a process that fails within this time is reported
_KILL_SECS = 10.0  # for a killed process to be gone
LOCK = "lock"  # in the folder of state files
_CHECKPOINT = re.compile(r"model\.ckpt-(\d+)\.index")


def check(processes: Sequence[Process]) -> Answer:
    """Finds what would prevent processes, each a shell and its script, from starting."""
    problems = []
    for process in processes:
        file, script = StateFile(process.state), os.path.abspath(process.command[1])
        record = file.read()
        if record and (record.is_alive or (record.is_due and record.is_supervised)):
            how = file.condition().text.replace("running", "already runs")
            problems.append(f"{process.label} {how}; stop it with stop_dist.sh")
        if not os.path.isfile(script):
            problems.append(f"no such script: {script}")
        elif process.needs and not os.path.isdir(process.needs):
            problems.append(f"{process.label}: no such folder: {process.needs}")
    return Answer(problems=list(dict.fromkeys(problems)))


def start(processes: Sequence[Process], files: Mapping[str, str]) -> Answer:
    """Writes files that only the user may read, and starts processes with their supervisors.

    Starts none where another run has started one of them since the check. Waits until all have
    loaded their modules, which their first line shows, and names those that fail soon.
    """
    answer = Answer()
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_locked(os.path.dirname(processes[0].state)))
        except OSError as error:
            answer.problems.append(f"cannot write {error.filename}: {error.strerror}")
        answer.problems += check(processes).problems
        if answer.problems:
            answer.refused = [process.label for process in processes]
            return answer
        for path, content in files.items():
            try:
                _write_privately(path, content)
            except OSError:
                answer.problems.append(f"cannot write {path}")
        for process in processes:
            said = _detach(process)
            if said.isdecimal():
                answer.lines.append(f"{process.label}: process {said}, {process.log}")
            else:
                answer.problems.append(f"{process.label}: {said}")
    if not answer.problems:
        _settle(processes, answer)
    return answer


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Lets one start at a time change a folder of state files; raises OSError."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    with open(os.path.join(folder, LOCK), "w") as file:
        with contextlib.suppress(OSError):  # the file system may have no locks
            fcntl.lockf(file, fcntl.LOCK_EX)  # which no supervisor inherits, unlike that of flock
        yield


def _settle(processes: Sequence[Process], answer: Answer) -> None:
    deadline = time.monotonic() + _LOAD_SECS
    for process in processes:
        while _is_silent(StateFile(process.state).read()):
            if time.monotonic() >= deadline:
                late = f"has said nothing for {_LOAD_SECS:g} s; see status_dist.sh"
                answer.lines.append(f"{process.label}: {late}")
                break
            time.sleep(_POLL_SECS)
    time.sleep(_SETTLE_SECS)
    for process in processes:
        condition = StateFile(process.state).condition()
        if condition.is_problem:
            said = last_line(Path(process.log).read_text(errors="replace"), "")
            answer.problems.append(f"{process.label} {condition.text}: {said}")


def _is_silent(record: Record | None) -> bool:
    if not record or not record.is_alive:
        return False
    with contextlib.suppress(OSError):
        return os.path.getsize(record.log) <= record.log_start
    return False


def status(processes: Sequence[Process], lines: int, with_logs: bool = False) -> Answer:
    """Shows the states of processes and the last lines of their logs, or whole logs on request."""
    answer = Answer()
    for process in processes:
        file = StateFile(process.state)
        condition, record = file.condition(), file.read()
        line = f"{process.label}: {condition.text}"
        answer.lines.append(line)
        if condition.is_problem:
            answer.unexpected.append(line)
        why = "it was not started on this host"
        try:
            if record and with_logs:
                answer.logs[process.label] = Path(record.log).read_bytes().decode(BYTES)
            if record:
                with open(record.log, errors="replace") as log:
                    last = collections.deque(log, lines)
                answer.lines += [f"    {each.rstrip()}" for each in last]
                continue
        except OSError as error:
            why = f"{record.log}: {error.strerror}"
        if with_logs:
            answer.problems.append(f"{process.label}: its log could not be fetched ({why})")
    return answer


def stop(processes: Sequence[Process], secs: float, *, over_ssh: bool = False) -> Answer:
    """Lets processes save and end; kills those that take longer, with their children.

    Args:
      processes: which.
      secs: time for them to save.
      over_ssh: whether those with a host are the ssh of a launcher. It passes the request on, and
        the ssh ends with its process; if the launcher was killed, that was asked to end then. A
        launcher that is suspended passes nothing on: after `secs` its ssh is killed, and the
        process is asked to end by that.
    """
    answer = Answer()
    deadline = time.monotonic() + secs
    groups: dict[str, int] = {}
    for process in processes:
        file = StateFile(process.state)
        file.ask_to_stop()
        record = file.read()
        if record and record.is_alive:
            groups[process.label] = record.pid
            if not (over_ssh and process.host):
                state.send(record.pid, signal.SIGTERM)
    for process in processes:
        file, group = StateFile(process.state), groups.get(process.label)
        killed = _await_end(process, group, deadline, secs) if group else None
        condition = killed or file.condition()
        line = f"{process.label}: {condition.text}"
        answer.lines.append(line)
        if killed and killed.is_problem:
            answer.problems.append(line)
        elif killed or not file.read():
            answer.unexpected.append(line)
    return answer


def _await_end(process: Process, group: int, deadline: float, secs: float) -> Condition | None:
    """Waits for the end of a process' group, and kills it at the deadline; then returns how.

    A group's id is not used again while one of its processes lives.
    """
    killed = None
    while state.send(group, 0):
        now = time.monotonic()
        if now >= deadline + _KILL_SECS:
            return Condition("still runs after SIGKILL", is_problem=True)
        if now >= deadline:
            why = f"killed because it did not end within {secs:g} s"
            killed = killed or Condition(f"{why}{_unsaved(process, group)}")
            state.send(group, signal.SIGKILL)
        time.sleep(_POLL_SECS)
    return killed


def _unsaved(process: Process, pid: int) -> str:
    """Returns the step of the last checkpoint; "" if there is none and it is not the chief."""
    folder, steps = "", []
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
        for word, following in itertools.pairwise(words):
            name, equals, value = word.partition("=")
            if name == "--train_dir":
                folder = value if equals else following
        names = os.listdir(folder) if folder else []
        steps = [int(found[1]) for found in map(_CHECKPOINT.fullmatch, names) if found]
    return f"; not saved since step {max(steps, default=0)}" if steps or process.is_chief else ""


def _write_privately(path: str, content: str) -> None:
    """Writes a file that only the user may read, whole, also if hosts share the home."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=os.path.dirname(path), delete=False) as file:
        file.write(content)
    os.replace(file.name, path)


def _detach(process: Process) -> str:
    """Starts a supervisor, which outlives this; returns its process' id, or why there is none."""
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        with open(reader) as said:
            return said.read() or "its supervisor ended"
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        for own in (0, 1, 2):
            os.dup2(os.open(os.devnull, os.O_RDWR), own)

        def report(pid: int | str) -> None:
            os.write(writer, str(pid).encode())
            os.close(writer)

        try:
            StateFile(process.state).clear()
            supervise(process, report)
        except OSError as error:
            report(f"{error.filename}: {error.strerror}")
    finally:
        os._exit(0)


_FUNCTIONS = {each.__name__: each for each in (check, start, status)}
_FUNCTIONS["stop"] = stop


def main() -> None:
    """Answers the request on standard input."""
    request = _at_home(json.loads(sys.stdin.readline()))
    function = _FUNCTIONS[request.pop("do")]
    own = [Process(**each) for each in request.pop("processes")]
    print(f"\n{MARK}", flush=True)
    print(json.dumps(dataclasses.asdict(function(own, **request))))


def _at_home(value: Any) -> Any:
    """Replaces each leading `~` by this user's home."""
    if isinstance(value, dict):
        return {_at_home(key): _at_home(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_at_home(each) for each in value]
    return os.path.expanduser(value) if isinstance(value, str) else value


def supervise(
    process: Process,
    report: Callable[[int], None] = lambda pid: None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Runs a process to its end, and again if it is killed; keeps its log and its state file.

    Args:
      process: the process.
      report: gets the id of the first process, once the file is written.
      sleep: waits for some seconds.

    Raises:
      OSError: it cannot be started, or its file cannot be written; then it was killed.
    """
    file, restarts, again = StateFile(process.state), Restarts(process.max_restarts), ""
    while True:
        restarts.note_start(process.label)
        _log(process, time.strftime(f"Started{again} at %Y-%m-%d %H:%M:%S."))
        started, record = _start(process, file)
        if not again:
            report(started.pid)
        again = " again"
        if file.is_stopping:  # a stop may have come before the file was there
            state.send(started.pid, signal.SIGTERM)
        record = dataclasses.replace(record, status=state.exit_status(started.wait()))
        pause_secs, what = None, ""
        if state.was_killed(record.status) and not file.is_stopping:
            pause_secs, what = restarts.next_start(process.label)
        if what:
            _log(process, f"Was killed by {state.signal_name(record.status)} and {what}.")
        if pause_secs is not None:
            file.write(dataclasses.replace(record, is_due=True))
            for _ in range(round(pause_secs / _POLL_SECS)):
                if not file.is_stopping:
                    sleep(_POLL_SECS)
        if pause_secs is None or file.is_stopping:
            file.write(record)
            return


def _start(process: Process, file: StateFile) -> tuple[subprocess.Popen, Record]:
    with open(process.log, "ab") as log:
        log_start = log.tell()
        started = subprocess.Popen(
            process.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | dict(process.environment),
            start_new_session=True,
        )
    try:
        return started, file.note_start(process, log_start, started.pid)
    except OSError:  # without its file it could not be stopped later
        state.send(started.pid, signal.SIGKILL)
        started.wait()
        raise


def _log(process: Process, line: str) -> None:
    with open(process.log, "a", encoding="utf-8") as log:
        print(line, file=log)


if __name__ == "__main__":
    main()
