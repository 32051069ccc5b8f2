"""Processes of this machine that go on without their launcher: starts, shows and stops them."""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import re
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from terngrad.launcher import state
from terngrad.launcher.hosts import last_line
from terngrad.launcher.protocol import BYTES, FOLDER, Answer, Job
from terngrad.launcher.state import Condition, Record, StateFile
from terngrad.launcher.supervisor import supervise, tell_start

_LOOK_SECS = 0.1
_KILL_SECS = 10.0  # for a killed process to be gone
_CHECKPOINT = re.compile(r"model\.ckpt-(\d+)\.index")


def check(jobs: Sequence[Job]) -> Answer:
    """Finds what would keep processes from their start."""
    problems = []
    for job in jobs:
        record = _file(job).read()
        if record and (record.is_alive or (record.is_due and record.is_watched)):
            how = _file(job).condition().text.replace("running", "already runs")
            problems.append(f"{job.label} {how}; stop it with stop_dist.sh")
        folder = os.path.expanduser(job.needs)
        if not os.path.isfile(job.script):
            problems.append(f"no such script: {os.path.abspath(job.script)}")
        elif folder and not os.path.isdir(folder):
            problems.append(f"{job.label}: no such folder: {folder}")
    return Answer(problems=list(dict.fromkeys(problems)))


def start(jobs: Sequence[Job], files: Mapping[str, str]) -> Answer:
    """Writes files that only the user may read, and starts processes with their supervisors."""
    answer = Answer()
    for path, content in files.items():
        own = os.path.expanduser(path)
        try:
            _receive(own, content)
        except OSError:
            answer.problems.append(f"cannot write {own}")
    for job in jobs:
        file, log = _file(job), os.path.expanduser(f"{FOLDER}/{job.log}")
        try:
            file.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            tell_start(log)
            file.clear()
        except OSError:
            answer.problems.append(f"{job.label}: cannot write {log}")
            continue
        pid = _detached(job, log, file)
        if pid.isdecimal():
            answer.lines.append(f"{job.label}: process {pid}, {log}")
        else:
            answer.problems.append(f"{job.label}: {pid}")
    return answer


def settle(jobs: Sequence[Job], load_secs: float, settle_secs: float) -> Answer:
    """Waits until the processes have loaded; names those that fail soon.

    A process has loaded its modules when its first line is there.

    Args:
      jobs: the processes.
      load_secs: for all to load, together.
      settle_secs: after that.
    """
    answer = Answer()
    deadline = time.monotonic() + load_secs
    for job in jobs:
        while _is_silent(_file(job).read()):
            if time.monotonic() >= deadline:
                late = f"has said nothing for {load_secs:g} s; see status_dist.sh"
                answer.lines.append(f"{job.label}: {late}")
                break
            time.sleep(_LOOK_SECS)
    time.sleep(settle_secs)
    for job in jobs:
        condition, record = _file(job).condition(), _file(job).read()
        if condition.is_problem and record:
            told = last_line(Path(record.log).read_text(errors="replace"), "")
            answer.problems.append(f"{job.label} {condition.text}: {told}")
    return answer


def status(jobs: Sequence[Job], lines: int, folder: str = FOLDER) -> Answer:
    """Shows how processes are, and the last lines of their logs."""
    answer = Answer()
    for job in jobs:
        condition, record = _file(job, folder).condition(), _file(job, folder).read()
        line = f"{job.label}: {condition.text}"
        answer.lines.append(line)
        if condition.is_problem:
            answer.ended.append(line)
        with (
            contextlib.suppress(OSError),
            open(record.log if record else "", errors="replace") as f,
        ):
            answer.lines += [f"    {each.rstrip()}" for each in collections.deque(f, lines)]
    return answer


def stop(jobs: Sequence[Job], secs: float, folder: str = FOLDER) -> Answer:
    """Lets processes save and end; kills those that take longer, with their children."""
    answer = Answer()
    deadline = time.monotonic() + secs
    groups: dict[str, int] = {}
    for job in jobs:
        file = _file(job, folder)
        file.ask_to_stop()
        record = file.read()
        if record and record.is_alive:
            groups[job.name] = record.pid
            state.send(record.pid, signal.SIGTERM)
    for job in jobs:
        killed = _await_end(job, groups[job.name], deadline, secs) if job.name in groups else None
        condition = killed or _file(job, folder).condition()
        line = f"{job.label}: {condition.text}"
        answer.lines.append(line)
        if killed and killed.is_problem:
            answer.problems.append(f"{job.label} {condition.text}")
        elif killed or not _file(job, folder).read():
            answer.ended.append(line)
    return answer


def _await_end(job: Job, group: int, deadline: float, secs: float) -> Condition | None:
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
            killed = killed or Condition(f"{why}{_unsaved(job, group)}")
            state.send(group, signal.SIGKILL)
        time.sleep(_LOOK_SECS)
    return killed


def _unsaved(job: Job, pid: int) -> str:
    """Tells the step of the last checkpoint; "" if there is none and it is not the chief."""
    folder, steps = "", []
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
        for word, following in itertools.pairwise(words):
            name, equals, value = word.partition("=")
            if name == "--train_dir":
                folder = value if equals else following
        names = os.listdir(folder) if folder else []
        steps = [int(found[1]) for found in map(_CHECKPOINT.fullmatch, names) if found]
    return f"; not saved since step {max(steps, default=0)}" if steps or job.is_chief else ""


def logs(jobs: Sequence[Job]) -> Answer:
    """Reads whole logs."""
    answer = Answer()
    for job in jobs:
        record = _file(job).read()
        why = "it was not started on this host"
        try:
            if record:
                answer.logs[job.name] = Path(record.log).read_bytes().decode(BYTES)
                continue
        except OSError as error:
            why = f"{record.log}: {error.strerror}"
        answer.problems.append(f"{job.label}: its log could not be fetched ({why})")
    return answer


def started_in(folder: str) -> list[Job]:
    """Returns the processes that have a state file in a folder."""
    found = [(file.path.stem, file.read()) for file in state.files_in(folder)]
    return [
        Job(record.label, name, record.host, script="", is_ps=record.label.startswith("ps "))
        for name, record in found
        if record
    ]


def _file(job: Job, folder: str = FOLDER) -> StateFile:
    return StateFile(Path(folder).expanduser(), job.name)


def _receive(path: str, content: str) -> None:
    """Writes a file that only the user may read, whole, also if hosts share the home."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=os.path.dirname(path), delete=False) as file:
        file.write(content)
    os.replace(file.name, path)


def _detached(job: Job, log: str, file: StateFile) -> str:
    """Starts a supervisor, which outlives this; returns its process' id, or why there is none."""
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        with open(reader) as told:
            return told.read().strip() or f"cannot write {file.path}"
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        for own in (0, 1, 2):
            os.dup2(os.open(os.devnull, os.O_RDWR), own)

        def report(pid: int) -> None:
            os.write(writer, str(pid).encode())
            os.close(writer)

        supervise(job, log, file, report)
    finally:
        os._exit(0)


def _is_silent(record: Record | None) -> bool:
    if not record or not record.is_alive:
        return False
    with contextlib.suppress(OSError):
        return os.path.getsize(record.log) <= record.begun
    return False
