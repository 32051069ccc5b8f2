"""What went wrong inside Spark, in one line out of the two stack traces of its error."""

from __future__ import annotations

import re

_TRACEBACK = "Traceback (most recent call last):\n"
_END_OF_PYTHON = re.compile(r"^(\tat | SQLSTATE: |Driver stacktrace:)", re.MULTILINE)
_EXECUTOR = re.compile(r"ExecutorLostFailure \((executor \S+)[^)]*\) Reason: (.*)")
_KILLED = "code 137"  # 128 + SIGKILL
_CRASH = "Python worker exited unexpectedly"
_WRAPPED = re.compile(r"^(: |[\w.$]+(Exception|Error): |Job aborted due to stage failure: )")


def reason(error: Exception) -> str:
    """Returns the line of an error of Spark that says what happened."""
    text = str(error)
    if traceback := python_traceback(error):
        lines = traceback.rpartition(_TRACEBACK)[2].splitlines()
        return next((line for line in lines if line.strip() and line[0] != " "), lines[-1])
    if lost := _EXECUTOR.search(text):
        cause = lost[2].strip() + (", as when memory runs out" if _KILLED in lost[2] else "")
        return f"{lost[1]} was lost: {cause}"
    if _CRASH in text:
        return "the Python process ended: by os._exit, by a signal, or because memory ran out"
    lines = [line for line in map(str.strip, text.splitlines()) if line]
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        lines.pop(0)
    line = lines[0] if lines else type(error).__name__
    while wrapped := _WRAPPED.match(line):
        line = line[wrapped.end() :]
    return line


def python_traceback(error: Exception) -> str:
    """Returns the traceback of the Python function that failed in a task, "" for none."""
    _, header, rest = str(error).partition(_TRACEBACK)
    return header + _END_OF_PYTHON.split(rest, maxsplit=1)[0].rstrip() if header else ""
