"""Runs a graph in another thread, while this one continues."""

from __future__ import annotations

import concurrent.futures
import threading
import weakref
from collections.abc import Callable
from typing import TypeVar

import tensorflow as tf

_Result = TypeVar("_Result")


class Gate:
    """A point at which a graph waits until it is opened, without blocking a TensorFlow thread."""

    def __init__(self) -> None:
        """Starts closed."""
        with tf.init_scope(), tf.device("/CPU:0"):
            self._queue = tf.queue.FIFOQueue(1, [tf.bool])
        # At the end of the program, too, a graph that waits must end.
        weakref.finalize(self, _close, self._queue)

    def passed(self) -> tf.Tensor:
        """Returns, within a graph, a tensor that exists once the call may continue."""
        return self._queue.dequeue()

    def open(self) -> None:
        """Lets one call continue."""
        self._queue.enqueue(True)


def _close(queue: tf.queue.FIFOQueue) -> None:
    with tf.init_scope():  # perhaps within the trace of a function that it is no part of
        queue.close()


def begin(make: Callable[[], _Result], gate: Gate) -> Callable[[], _Result]:
    """Calls `make` in another thread.

    Returns:
      A function that opens the gate, waits for the thread, and returns or raises what `make` did.
    """
    future: concurrent.futures.Future[_Result] = concurrent.futures.Future()

    def run() -> None:
        try:
            future.set_result(make())
        except BaseException as error:  # for the thread that waits
            future.set_exception(error)

    # Not of an executor, whose threads a program waits for at its end.
    threading.Thread(target=run, name="terngrad exchange", daemon=True).start()

    def end() -> _Result:
        gate.open()
        return future.result()

    return end
