"""What a ps computes: the result of what the workers pushed, bit for bit as other exchanges do."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from terngrad.codecs.planes import plane_count
from terngrad.exchange.exchange import tree_sum
from terngrad.exchange.parameter_server.operations import Kind, Operation
from terngrad.ops.kernels import Kernels

_DTYPES = {Kind.MAX: tf.float32, Kind.FLOATS: tf.float32, Kind.HALVES: tf.float16}


class Reduction:
    """Reduces whole pieces in TensorFlow's operations, without a lock on Python."""

    def __init__(self, kernels: Kernels) -> None:
        """`kernels` add codes."""
        self._kernels = kernels
        self._compiled = functools.cache(_compile)

    def reduce(self, operation: Operation, parts: Sequence[memoryview]) -> memoryview:
        """The result of a piece.

        Args:
          operation: of which it is a piece.
          parts: what each contributor pushed, in their order and of the right sizes.
        """
        if operation.kind == Kind.BROADCAST:
            return parts[0]
        if operation.kind == Kind.CODES:
            return _bytes_of(self._sum_codes(operation, parts))
        dtype = _DTYPES[operation.kind]
        compiled = self._compiled(operation.kind, len(parts))
        return _bytes_of(compiled(*(np.frombuffer(part, dtype.as_numpy_dtype) for part in parts)))

    def _sum_codes(self, operation: Operation, parts: Sequence[memoryview]) -> tf.Tensor:
        planes = plane_count(operation.local_nodes)
        words = [tf.constant(np.frombuffer(part, "<u4").reshape(-1, planes)) for part in parts]
        return self._kernels.sum(words, plane_count(operation.nodes))


def _compile(kind: Kind, count: int) -> Callable[..., tf.Tensor]:
    """The function of so many parts that a kind stands for."""
    # A tensor: a division by a constant would become another product.
    divisor = tf.Variable(float(count), trainable=False)

    def mean_of_halves(*parts: tf.Tensor) -> tf.Tensor:
        total = tree_sum([tf.cast(part, tf.float32) for part in parts])
        return tf.cast(total / divisor.read_value(), tf.float16)

    functions = {
        Kind.MAX: lambda *parts: tf.reduce_max(tf.stack(parts), axis=0),
        Kind.FLOATS: lambda *parts: tree_sum(parts),
        Kind.HALVES: mean_of_halves,
    }
    signature = [tf.TensorSpec([None], _DTYPES[kind])] * count
    return tf.function(functions[kind], input_signature=signature, autograph=False)


def _bytes_of(result: tf.Tensor) -> memoryview:
    return np.asarray(result).reshape(-1).data.cast("B")  # .numpy() would copy
