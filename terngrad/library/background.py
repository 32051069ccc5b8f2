"""Calls of graphs that another thread makes, while this one goes on."""

from __future__ import annotations

import concurrent.futures
import threading
import weakref
from collections.abc import Callable
from typing import TypeVar

import tensorflow as tf

_Result = TypeVar("_Result")


class Gate:
    """Where a graph waits until it is opened; no thread of TensorFlow's waits there."""

    def __init__(self) -> None:
        """Starts closed."""
        with tf.init_scope(), tf.device("/CPU:0"):
            self._queue = tf.queue.FIFOQueue(1, [tf.bool])
        # At the end of the program, too, a graph that waits must end.
        weakref.finalize(self, _close, self._queue)

    def passed(self) -> tf.Tensor:
        """Returns, within a graph, what is there when a call may go on."""
        return self._queue.dequeue()

    def open(self) -> None:
        """Lets one call go on."""
        self._queue.enqueue(True)


def _close(queue: tf.queue.FIFOQueue) -> None:
    with tf.init_scope():  # perhaps within the trace of a function that it is no part of
        queue.close()


def begin(make: Callable[[], _Result], gate: Gate) -> Callable[[], _Result]:
    """Lets another thread call `make`; returns what opens the gate, waits, and returns the result.

    What that raises is what `make` has raised.
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
