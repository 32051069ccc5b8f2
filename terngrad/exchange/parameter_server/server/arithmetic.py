"""The computation of a ps: results of pushes, bit for bit equal to those of other exchanges."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from terngrad.exchange.exchange import tree_sum
from terngrad.exchange.parameter_server.operations import Kind, Operation
from terngrad.ops.packing import Packing

_DTYPES = {Kind.MAX: np.float32, Kind.FLOATS: np.float32, Kind.HALVES: np.float16}


class PackedArithmetic:
    """Reduces whole pieces in native code and TensorFlow's, which release Python's lock."""

    def __init__(self, packing: Packing) -> None:
        """`packing` adds codes."""
        self._packing = packing
        self._compiled = functools.cache(_compile)

    def open(self, operation: Operation, piece: int, payload: memoryview) -> memoryview:
        """Returns a push as this computes with it: codes in planes.

        Args:
          operation: operation of the piece.
          piece: its index.
          payload: of at most `Operation.push_size` bytes.

        Raises:
          ValueError: it is no code.
        """
        size = operation.push_size(piece)
        if payload.nbytes == size:
            return payload
        words = np.empty(size, np.uint8)
        self._packing.unpack(payload, operation.largest_pushed, words)
        return words.data

    def reduce(self, operation: Operation, parts: Sequence[memoryview]) -> memoryview:
        """Returns the result of a piece.

        Args:
          operation: operation of the piece.
          parts: opened push of each contributor, in the order of workers. A sum of codes is modulo
            2^planes.
        """
        if operation.kind == Kind.GATHER_CODES:
            return max(parts, key=lambda part: part.nbytes)  # the owner's; the others' are empty
        if operation.is_packed:
            planes, count = operation.pushed_planes, operation.result_planes
            if len(parts) == 1 and planes == count:
                return parts[0]
            return self._packing.sum_buffers(parts, planes, count)
        arrays = [np.frombuffer(part, _DTYPES[operation.kind]) for part in parts]
        if operation.kind == Kind.MAX:  # too few numbers to be worth a tensor
            return functools.reduce(np.maximum, arrays).view(np.uint8).data
        compiled = self._compiled(operation.kind, len(parts))
        return np.asarray(compiled(*arrays)).view(np.uint8).data  # .numpy() would copy

    def leave_out(self, operation: Operation, total: memoryview, part: memoryview) -> memoryview:
        """Returns the sum of the other parts of a piece of codes.

        Args:
          operation: operation of the piece.
          total: result of all parts.
          part: the opened push to leave out.
        """
        planes, count = operation.pushed_planes, operation.result_planes
        return self._packing.difference_buffers(total, part, planes, count)

    def others(self, operation: Operation, parts: Sequence[memoryview]) -> list[memoryview]:
        """Returns for each part of a piece of codes the other one's; zeros if there is one part."""
        if len(parts) == 1:
            return [memoryview(bytes(parts[0].nbytes))]
        return [*reversed(parts)]

    def payload(self, operation: Operation, result: memoryview) -> memoryview:
        """Returns a result as it travels: sums of codes that are not too large are packed."""
        if not operation.is_packed:
            return result
        return self._packing.pack(result, operation.largest_result)


def _compile(kind: Kind, count: int) -> Callable[..., tf.Tensor]:
    """Compiles the reduction of `count` parts."""
    # A variable: a division by a constant would become a product, which rounds differently.
    divisor = tf.Variable(float(count), trainable=False)

    def mean_of_halves(*parts: tf.Tensor) -> tf.Tensor:
        total = tree_sum([tf.cast(part, tf.float32) for part in parts])
        return tf.cast(total / divisor.read_value(), tf.float16)

    functions = {
        Kind.FLOATS: lambda *parts: tree_sum(parts),
        Kind.HALVES: mean_of_halves,
    }
    signature = [tf.TensorSpec([None], _DTYPES[kind])] * count
    return tf.function(functions[kind], input_signature=signature, autograph=False)
