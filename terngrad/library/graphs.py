"""Exchanges within graphs of TensorFlow: without XLA, one after the other, or in a thread."""

from __future__ import annotations

import concurrent.futures
import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TypeVar

import tensorflow as tf

_Tensors = TypeVar("_Tensors")


def check_graph() -> None:
    """Raises ValueError where the current graph is compiled by XLA."""
    graph = tf.compat.v1.get_default_graph() if not tf.executing_eagerly() else None
    while graph is not None:
        if _is_for_xla(graph):
            raise ValueError(
                "jit_compile=True: XLA cannot compile the exchange between processes; allowed is "
                "jit_compile=False, in model.compile or tf.function"
            )
        graph = getattr(graph, "outer_graph", None)


def _is_for_xla(graph: tf.Graph) -> bool:
    context = graph._get_control_flow_context()
    while context is not None:
        if context.IsXLAContext():
            return True
        context = context.outer_context
    return False


def begin_after(inputs: Sequence[tf.Tensor], begin: Callable[[], None]) -> None:
    """Lets the current graph call `begin` once its inputs exist: no step begins without a batch."""
    with tf.control_dependencies(inputs):
        tf.numpy_function(begin, [], [])


class CallOrder:
    """Runs the calls within one graph one after another: their operations have the same names."""

    def __init__(self) -> None:
        self._graph: weakref.ref | None = None
        self._last: list[tf.Tensor] = []

    def delayed(self, inputs: _Tensors) -> _Tensors:
        """Delays the inputs of a call until the last call in this graph has ended.

        Args:
          inputs: tensors in lists; the call begins with operations on them.
        """
        graph = tf.compat.v1.get_default_graph()
        if not self._last or not self._graph or self._graph() is not graph:
            return inputs
        with tf.control_dependencies(self._last):
            return tf.nest.map_structure(tf.identity, inputs)

    def end(self, results: Sequence[tf.Tensor]) -> None:
        """Notes the results of a call, with which it ends."""
        graph = tf.compat.v1.get_default_graph()
        self._graph, self._last = weakref.ref(graph), list(results)


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

    def shut(self) -> None:
        """Closes it again after a call that has failed before it passed."""
        if int(self._queue.size()):
            self._queue.dequeue()


def _close(queue: tf.queue.FIFOQueue) -> None:
    with tf.init_scope():  # perhaps within the trace of a function that it is no part of
        queue.close()


def run_in_thread(make: Callable[[], _Result], gate: Gate) -> Callable[[], _Result]:
    """Calls `make` in another thread.

    Returns:
      A function that opens the gate, waits for the thread, and returns or raises what `make` did;
      called again, it does not open the gate, where the next call may wait.
    """
    future: concurrent.futures.Future[_Result] = concurrent.futures.Future()

    def run() -> None:
        try:
            future.set_result(make())
        except BaseException as error:  # for the thread that waits
            future.set_exception(error)

    # Not of an executor, whose threads a program waits for at its end.
    threading.Thread(target=run, name="terngrad exchange", daemon=True).start()

    @functools.cache
    def pass_gate() -> None:
        gate.open()
        concurrent.futures.wait([future])
        gate.shut()

    def end() -> _Result:
        pass_gate()
        return future.result()

    return end
