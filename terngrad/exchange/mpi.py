"""The exchange over MPI (mpi4py, with MPICH or Open MPI): processes that mpirun started."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf
from mpi4py import MPI

from terngrad.exchange.exchange import begin_span
from terngrad.exchange.two_shot import Transport


class MpiTransport(Transport):
    """Collectives of an MPI communicator.

    MPI matches collectives by their order, not by name. tf.function keeps the order in which these
    operations were traced, and this order is the same in all processes.
    """

    matches_by_order = True

    def __init__(self, communicator: MPI.Comm) -> None:
        """Joins the processes of the communicator."""
        self.rank = communicator.Get_rank()
        self.size = communicator.Get_size()
        self._communicator = communicator

    def all_to_all(self, parts: tf.Tensor, name: str) -> tf.Tensor:
        """See base class."""

        def exchange(mine: np.ndarray) -> np.ndarray:
            received = np.empty_like(mine)
            self._communicator.Alltoall(mine, received)
            return received

        return _call(exchange, name, parts, parts.shape)

    def all_gather(self, part: tf.Tensor, name: str) -> tf.Tensor:
        """See base class."""

        def gather(mine: np.ndarray) -> np.ndarray:
            received = np.empty((self.size, *mine.shape), mine.dtype)
            self._communicator.Allgather(mine, received)
            return received

        return _call(gather, name, part, [self.size, *part.shape])

    def broadcast(self, value: tf.Tensor, name: str) -> tf.Tensor:
        """See base class."""

        def receive(mine: np.ndarray) -> np.ndarray:
            received = np.array(mine)
            self._communicator.Bcast(received)
            return received

        return _call(receive, name, value, value.shape)


def _call(
    function: Callable[[np.ndarray], np.ndarray],
    name: str,
    tensor: tf.Tensor,
    shape: tf.TensorShape | list,
) -> tf.Tensor:
    def traced(array: np.ndarray) -> np.ndarray:
        with begin_span(name, "TerngradMpi"):
            return function(np.asarray(array, order="C"))

    # numpy_function is stateful, so TensorFlow drops, merges or reorders no call.
    return tf.ensure_shape(tf.numpy_function(traced, [tensor], tensor.dtype), shape)
