"""The process in which a Spark task runs a user's function: python -m terngrad.spark.process.

It has its own TensorFlow, and signals reach its main thread. It is killed when the task ends, also
when the task is killed.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import threading

from terngrad.spark.feed import Feed


def main(task_end: int, rows: int, results: int) -> None:
    """Reads a function, its arguments, context and schema from standard input, and calls it.

    Args:
      task_end: file descriptor of a pipe that closes when the task ends.
      rows: file descriptor of the rows; -1 = none.
      results: file descriptor of the results; -1 = none.
    """
    from pyspark import cloudpickle

    threading.Thread(target=_end_with_the_task, args=(task_end,), daemon=True).start()
    function, arguments, context, schema = (cloudpickle.load(sys.stdin.buffer) for _ in range(4))
    if rows >= 0:
        given = os.fdopen(results, "wb") if results >= 0 else None
        feed = Feed(os.fdopen(rows, "rb"), given, schema)
        context = dataclasses.replace(context, feed=feed)
    function(arguments, context)
    if context.feed:
        context.feed.close()


def _end_with_the_task(task_end: int) -> None:
    os.read(task_end, 1)  # returns when the pipe closes
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
