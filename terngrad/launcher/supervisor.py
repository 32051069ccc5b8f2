"""Runs a detached process, and restarts it if it is killed."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import time
from collections.abc import Callable

from terngrad.launcher import state
from terngrad.launcher.process import Process, Restarts
from terngrad.launcher.state import Record, StateFile

_LOOK_SECS = 0.1


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
        if file.is_stopping:  # whoever stops may have looked before the file was there
            state.send(started.pid, signal.SIGTERM)
        record = dataclasses.replace(record, status=state.exit_status(started.wait()))
        pause_secs, what = None, ""
        if state.was_killed(record.status) and not file.is_stopping:
            pause_secs, what = restarts.next_start(process.label)
        if what:
            _log(process, f"Was killed by {state.signal_name(record.status)} and {what}.")
        if pause_secs is not None:
            file.write(dataclasses.replace(record, is_due=True))
            for _ in range(round(pause_secs / _LOOK_SECS)):
                if not file.is_stopping:
                    sleep(_LOOK_SECS)
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
