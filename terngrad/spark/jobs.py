"""Jobs of Spark that run at the same time, the cores that there are for them, and their errors."""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext

_TRACEBACK = "Traceback (most recent call last):\n"
_END_OF_PYTHON = re.compile(r"^(\tat | SQLSTATE: |Driver stacktrace:)", re.MULTILINE)
_EXECUTOR = re.compile(r"ExecutorLostFailure \((executor \S+)[^)]*\) Reason: (.*)")
_KILLED = "code 137"  # 128 + SIGKILL
_CRASH = "Python worker exited unexpectedly"
_CANCELLED = "[SPARK_JOB_CANCELLED]"
_WRAPPED = re.compile(r"^(: |[\w.$]+(Exception|Error): |Job aborted due to stage failure: )")


class Jobs:
    """Jobs in threads. The first one that fails ends the others.

    Attributes:
      results: the elements of the partitions, job after job; complete once all have ended.
      failures: why jobs failed, the first one first.
    """

    def __init__(
        self,
        context: SparkContext,
        jobs: Sequence[tuple[RDD, Sequence[int]]],
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """Starts the jobs.

        Args:
          context: of Spark.
          jobs: partitions of an RDD.
          on_end: called once all have ended, and if one fails.
        """
        from pyspark import InheritableThread

        self.failures: list[Exception] = []
        self._context = context
        self._group = f"terngrad {uuid.uuid4()}"
        self._results: list[list[Any]] = [[] for _ in jobs]
        self._num_running = len(jobs)
        self._lock = threading.Lock()
        self._on_end = on_end
        self._threads = [
            InheritableThread(target=self._run, args=(i, *job), daemon=True)
            for i, job in enumerate(jobs)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def results(self) -> list[Any]:
        return [element for part in self._results for element in part]

    def wait(self, secs: float | None = None) -> bool:
        """Waits until all have ended, at most `secs` seconds; returns whether they have."""
        deadline = None if secs is None else time.monotonic() + secs
        for thread in self._threads:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def cancel(self) -> None:
        """Ends all jobs, also a barrier stage that still waits for cores."""
        self._context._jsc.sc().cancelJobGroupAndFutureJobs(self._group)

    def _run(self, index: int, rdd: RDD, partitions: Sequence[int]) -> None:
        self._context.setJobGroup(self._group, "processes of terngrad.spark.cluster", True)
        try:
            self._results[index] = self._context.runJob(rdd, list, partitions)
        except Exception as error:
            self.failures.append(error)
            self.cancel()
        with self._lock:
            self._num_running -= 1
            is_end = bool(self.failures) or not self._num_running
        if is_end:
            self._on_end()


def num_cores(context: SparkContext) -> int:
    """Returns the number of cores of all current executors."""
    executors = context._jsc.sc().statusStore().executorList(True)
    return sum(executors.apply(i).totalCores() for i in range(executors.size()))


def cores_of_task(context: SparkContext) -> int:
    """Returns how many cores a task takes."""
    return int(context.getConf().get("spark.task.cpus", "1"))


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


def is_cancelled(error: Exception) -> bool:
    """Returns whether a job failed because somebody cancelled it."""
    return reason(error).startswith(_CANCELLED)


def python_traceback(error: Exception) -> str:
    """Returns the traceback of the Python function that failed in a task, "" for none."""
    _, header, rest = str(error).partition(_TRACEBACK)
    return header + _END_OF_PYTHON.split(rest, maxsplit=1)[0].rstrip() if header else ""
