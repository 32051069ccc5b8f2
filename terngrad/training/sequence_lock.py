"""Copies of a training's state between two steps, made by another thread than the one that trains.

While a step waits for another process, the thread that trains is within TensorFlow and cannot save.
Another thread copies the variables, and finds out by two counters whether a step changed one of
them meanwhile (a seqlock): a step counts `started` before its first update, and `done` after its
last one. So the steps need not wait for the copy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf


class SequenceLock:
    """Tells whether the variables that steps update are those of a whole step."""

    def __init__(self) -> None:
        """Starts outside the updates of a step."""
        with tf.device("/CPU:0"):
            self._started, self._done = (
                tf.Variable(0, dtype=tf.int64, trainable=False) for _ in range(2)
            )

    @contextlib.contextmanager
    def updates(self, results: Sequence[tf.Tensor]) -> Iterator[None]:
        """Delays the operations made within it until all results of a step's exchange are there.

        Then nothing is left that could wait for another process, and a note is made before the
        first of these operations.
        """
        with tf.control_dependencies(results), tf.device("/CPU:0"):
            noted = self._started.assign_add(1, read_value=False)
        with tf.control_dependencies([] if noted is None else [noted]):  # None outside a graph
            yield

    def end(self) -> None:
        """Notes that the step is done; call it after the function that makes a step."""
        with tf.device("/CPU:0"):
            self._done.assign(self._started.read_value())

    def copy(
        self, variables: Mapping[str, tf.Variable], version: Callable[[], int] = lambda: 0
    ) -> dict[str, tf.Variable] | None:
        """Returns copies of variables; None if they are within the updates of a step.

        Args:
          variables: by name.
          version: changes before anything else than a step changes them.
        """
        before = self.position(), version()
        if before[0] is None:
            return None
        copies = {name: np.array(variable.numpy()) for name, variable in variables.items()}
        if before != (self.position(), version()):
            return None
        with tf.device("/CPU:0"):
            return {name: tf.Variable(each, trainable=False) for name, each in copies.items()}

    def position(self) -> int | None:
        """Returns a number that differs after later updates; None within those of a step."""
        started = int(self._started)
        return started if started == int(self._done) else None
