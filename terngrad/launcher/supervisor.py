"""Runs a process that goes on without its launcher, and starts it again if it is killed."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import time
from collections.abc import Callable

from terngrad.launcher import state
from terngrad.launcher.protocol import Job
from terngrad.launcher.restarts import MOST_IN_A_ROW, SHORT_SECS, Restarts
from terngrad.launcher.state import Record, StateFile

_LOOK_SECS = 0.1


def supervise(
    job: Job,
    log: str,
    file: StateFile,
    report: Callable[[int], None] = lambda pid: None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Runs a process to its end, and again if it is killed; keeps its file.

    Args:
      job: the process.
      log: file to which its output is added.
      file: of the process.
      report: gets the id of the first process, once the file is written.
      sleep: waits for some seconds.

    Raises:
      OSError: it cannot be started, or its file cannot be written; then it was killed.
    """
    restarts = Restarts(job.max_restarts)
    begun, is_first = os.path.getsize(log), True
    while True:
        restarts.begun(job.name)
        if not is_first:
            tell_start(log, " again")
        process, record = _start(job, log, file, begun)
        if is_first:
            report(process.pid)
        is_first = False
        if file.is_stopping:  # whoever stops may have looked before the file was there
            state.send(process.pid, signal.SIGTERM)
        code = process.wait()
        status = 128 - code if code < 0 else code
        record = dataclasses.replace(record, status=status)
        pause_secs = None
        if state.was_killed(status) and not file.is_stopping:
            pause_secs = restarts.pause_secs(job.name)
            if pause_secs is None and job.max_restarts and restarts.is_left_out(job.name):
                runs = f"{MOST_IN_A_ROW} runs of less than {SHORT_SECS:g} s"
                _tell(log, f"Killed, and left out after {runs}.")
        if pause_secs is None or _is_stopped(file, record, log, pause_secs, sleep):
            file.write(record)
            return


def _start(job: Job, log: str, file: StateFile, begun: int) -> tuple[subprocess.Popen, Record]:
    command = ["bash", job.script, *map(os.path.expanduser, job.arguments)]
    own = {name: os.path.expanduser(value) for name, value in job.environment.items()}
    with open(log, "ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | own,
            start_new_session=True,
        )
    record = state.new_record(job.label, job.host, command, log, begun, process.pid)
    try:
        file.write(record)
    except OSError:  # without its file it could not be stopped later
        state.send(process.pid, signal.SIGKILL)
        process.wait()
        raise
    return process, record


def _is_stopped(
    file: StateFile, record: Record, log: str, pause_secs: float, sleep: Callable[[float], None]
) -> bool:
    """Waits before a restart; returns whether somebody stopped the process meanwhile."""
    name = state.signal_name(record.status)
    _tell(log, f"Killed by {name}, and started again in {pause_secs:g} s.")
    file.write(dataclasses.replace(record, is_due=True))
    for _ in range(round(pause_secs / _LOOK_SECS)):
        if file.is_stopping:
            break
        sleep(_LOOK_SECS)
    return file.is_stopping


def tell_start(log: str, again: str = "") -> None:
    """Writes a line that parts a run in the log from the one before; raises OSError."""
    _tell(log, time.strftime(f"Started{again} at %Y-%m-%d %H:%M:%S."))


def _tell(log: str, line: str) -> None:
    with open(log, "a", encoding="utf-8") as file:
        print(line, file=file)
