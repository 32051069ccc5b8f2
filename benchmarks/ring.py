"""An engine's own all-reduce of float32: what the suite's exchanges are compared with."""

import numpy as np
import tensorflow as tf

from terngrad.exchange.collective import CollectiveTransport
from terngrad.exchange.ordering import unordered
from terngrad.exchange.sockets import SocketTransport
from terngrad.exchange.two_shot import Transport


def all_reduce(transport: Transport, values: tf.Tensor, name: str) -> tf.Tensor:
    """Sums the processes' float32 tensors in the order that the engine chooses.

    Args:
      transport: that of TensorFlow's collective runtime, of sockets, or of mpi4py's COMM_WORLD.
      values: of this process.
      name: the same on all processes, and different for each operation.
    """
    if isinstance(transport, CollectiveTransport):
        arguments = transport.arguments(name)
        reduced = tf.raw_ops.CollectiveReduceV2(
            input=values, merge_op="Add", final_op="Id", **arguments
        )
        return unordered(reduced)
    if isinstance(transport, SocketTransport):
        total, _ = transport.sum_floats(tf.reshape(values, [-1]), name)
        return tf.reshape(total, values.shape)
    return tf.ensure_shape(tf.numpy_function(_reduce_by_mpi, [values], tf.float32), values.shape)


def _reduce_by_mpi(mine: np.ndarray) -> np.ndarray:
    from mpi4py import MPI  # an optional package

    total = np.empty_like(mine)
    MPI.COMM_WORLD.Allreduce(np.ascontiguousarray(mine), total, MPI.SUM)
    return total
