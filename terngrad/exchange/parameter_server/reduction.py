"""What a ps computes: the result of what the workers pushed, bit for bit as other exchanges do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from terngrad.codecs.planes import plane_count
from terngrad.exchange.exchange import tree_sum
from terngrad.exchange.parameter_server.operations import Kind, Operation
from terngrad.ops.kernels import Kernels


class Reduction:
    """Reduces whole pieces in TensorFlow's operations, without a lock on Python."""

    def __init__(self, kernels: Kernels, workers: int) -> None:
        """Of pieces that so many workers push; `kernels` add their codes."""
        self._kernels = kernels
        # A tensor: a division by a constant would become another product.
        self._workers = tf.Variable(float(workers), trainable=False)
        each = lambda dtype: [tf.TensorSpec([None], dtype)] * workers
        largest = lambda *parts: tf.reduce_max(tf.stack(parts), axis=0)
        total = lambda *parts: tree_sum(parts)
        self._max = tf.function(largest, input_signature=each(tf.float32), autograph=False)
        self._sum = tf.function(total, input_signature=each(tf.float32), autograph=False)
        self._mean = tf.function(
            self._mean_of_halves, input_signature=each(tf.float16), autograph=False
        )
        self._by_kind = {
            Kind.MAX: lambda op, parts: self._max(*_arrays(parts, "<f4")),
            Kind.CODES: self._sum_codes,
            Kind.FLOATS: lambda op, parts: self._sum(*_arrays(parts, "<f4")),
            Kind.HALVES: lambda op, parts: self._mean(*_arrays(parts, "<f2")),
        }

    def reduce(self, operation: Operation, parts: Sequence[memoryview]) -> memoryview:
        """The result of a piece.

        Args:
          operation: of which it is a piece.
          parts: what each worker pushed, in their order and of the right sizes.
        """
        if operation.kind == Kind.BROADCAST:
            return parts[0]
        if operation.kind == Kind.GATHER:
            return memoryview(b"".join(parts))
        return self._by_kind[operation.kind](operation, parts).numpy().reshape(-1).data.cast("B")

    def _sum_codes(self, operation: Operation, parts: Sequence[memoryview]) -> tf.Tensor:
        planes = plane_count(operation.local_nodes)
        words = [tf.constant(array.reshape(-1, planes)) for array in _arrays(parts, "<u4")]
        return self._kernels.sum(words, plane_count(operation.nodes))

    def _mean_of_halves(self, *parts: tf.Tensor) -> tf.Tensor:
        total = tree_sum([tf.cast(part, tf.float32) for part in parts])
        return tf.cast(total / self._workers.read_value(), tf.float16)


def _arrays(parts: Sequence[memoryview], dtype: str) -> list[np.ndarray]:
    return [np.frombuffer(part, dtype) for part in parts]
