"""The computation of a ps: results of pushes, bit for bit equal to those of other exchanges."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from terngrad.exchange.exchange import tree_sum
from terngrad.exchange.parameter_server.operations import Kind, Operation
from terngrad.ops.kernels import Kernels

_DTYPES = {Kind.MAX: np.float32, Kind.FLOATS: np.float32, Kind.HALVES: np.float16}


class Reduction:
    """Reduces whole pieces in kernels and TensorFlow operations, which release Python's lock."""

    def __init__(self, kernels: Kernels) -> None:
        """`kernels` add codes."""
        self._kernels = kernels
        self._compiled = functools.cache(_compile)

    def reduce(self, operation: Operation, piece: int, parts: Sequence[memoryview]) -> memoryview:
        """Returns the result of a piece.

        Args:
          operation: operation of the piece.
          piece: its index.
          parts: push of each contributor, in the order of workers; the sizes are checked already.
            A sum of codes is modulo 2^planes.
        """
        if operation.kind == Kind.CODES:
            codes = [self._unpacked(operation, piece, part) for part in parts]
            planes, count = operation.pushed_planes, operation.result_planes
            if len(codes) == 1 and planes == count:
                return codes[0]
            return self._kernels.sum_buffers(codes, planes, count)
        arrays = [np.frombuffer(part, _DTYPES[operation.kind]) for part in parts]
        if operation.kind == Kind.MAX:  # too few numbers to be worth a tensor
            return functools.reduce(np.maximum, arrays).view(np.uint8).data
        compiled = self._compiled(operation.kind, len(parts))
        return np.asarray(compiled(*arrays)).view(np.uint8).data  # .numpy() would copy

    def leave_out(
        self, operation: Operation, piece: int, total: memoryview, part: memoryview
    ) -> memoryview:
        """Returns the sum of the other parts of a piece of codes.

        Args:
          operation: operation of the piece.
          piece: its index.
          total: result of all parts.
          part: the push to leave out.
        """
        planes, count = operation.pushed_planes, operation.result_planes
        codes = self._unpacked(operation, piece, part)
        return self._kernels.difference_buffers(total, codes, planes, count)

    def payload(self, operation: Operation, result: memoryview) -> memoryview:
        """Returns a result as it travels: some sums of codes do so in base 3."""
        digits = operation.result_digits
        return self._kernels.pack_base3(result, digits) if digits else result

    def others(
        self, operation: Operation, piece: int, parts: Sequence[memoryview]
    ) -> list[memoryview]:
        """Returns for each part of a piece of codes the payload with the sum of the others."""
        if len(parts) == 2 and operation.largest_pushed == operation.largest_result:
            return [*reversed(parts)]  # there is nothing to add
        planes, count = operation.pushed_planes, operation.result_planes
        codes = [self._unpacked(operation, piece, part) for part in parts]
        sums = self._kernels.sums_of_others(codes, planes, count)
        return [self.payload(operation, each) for each in sums]

    def _unpacked(self, operation: Operation, piece: int, part: memoryview) -> memoryview:
        """Returns the planes of a push."""
        if not (digits := operation.pushed_digits):
            return part
        first, end = operation.piece_items(piece)
        words = np.empty((end - first) * operation.pushed_bytes, np.uint8)
        self._kernels.unpack_base3(part, digits, words)
        return words.data


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
