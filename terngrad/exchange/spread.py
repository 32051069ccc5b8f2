"""The shared part of all exchanges whose nodes are spread over several processes.

A process first combines its own nodes in memory. The engine then combines one flat tensor from
each process.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence

import tensorflow as tf

from terngrad.exchange.exchange import Exchange, tree_sum
from terngrad.ops.kernels import Kernels
from terngrad.planes import plane_count


class SpreadExchange(Exchange):
    """An exchange in which each process computes the same number of consecutive nodes.

    If this number is a power of two, sums of floats do not depend on how nodes are spread over
    processes (law 4).
    """

    def __init__(self, rank: int, processes: int, local_nodes: int, kernels: Kernels) -> None:
        """Joins `local_nodes` nodes of each process; `kernels` add their codes.

        Raises:
          ValueError: there are no nodes, or more than 65536.
        """
        super().__init__(rank, processes, local_nodes)
        self._kernels = kernels

    @abc.abstractmethod
    def _join_max(self, local: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the elementwise largest of the processes' float32 [n]."""

    @abc.abstractmethod
    def _join_codes(self, local: tf.Tensor, name: str, max_code: int) -> tf.Tensor:
        """Returns the sum of the processes' codes, uint32 [G, k]; a node's reach `max_code`."""

    @abc.abstractmethod
    def _join_floats(self, local: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the sum of the processes' float32 [n]."""

    @abc.abstractmethod
    def _join_halves(self, local: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the mean of the processes' float32 [n], which travel as float16 both ways."""

    def max(self, vectors: Sequence[tf.Tensor], name: str) -> tf.Tensor:
        """See base class."""
        return self._join_max(tf.reduce_max(tf.stack(vectors), axis=0), name)

    def sum(self, codes: Sequence[tf.Tensor], name: str, max_code: int) -> tf.Tensor:
        """See base class."""
        return self._join_codes(self._local_sum(codes, max_code), name, max_code)

    def float_sum(self, values: Sequence[Sequence[tf.Tensor]], name: str) -> list[tf.Tensor]:
        """See base class."""
        local = [tree_sum(each) for each in zip(*values, strict=True)]
        return _like(self._join_floats(_flat(local), name), local)

    def mean(self, values: Sequence[Sequence[tf.Tensor]], name: str) -> list[tf.Tensor]:
        """See base class; float16 travels as float16 and is rounded again on each way."""
        if values[0][0].dtype != tf.float16:
            return super().mean(values, name)
        wide = [[tf.cast(value, tf.float32) for value in node] for node in values]
        local = [tree_sum(each) / self.local_nodes for each in zip(*wide, strict=True)]
        means = self._join_halves(_flat(local), name)
        return [tf.cast(mean, tf.float16) for mean in _like(means, local)]

    def _local_sum(self, codes: Sequence[tf.Tensor], max_code: int) -> tf.Tensor:
        self.largest_sum(max_code)
        planes = plane_count(self.local_nodes * max_code)
        if self.local_nodes == 1 and codes[0].shape[1] == planes:
            return codes[0]
        return self._kernels.sum(codes, planes)


def _flat(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)


def _like(flat: tf.Tensor, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Splits a flat tensor into tensors with the shapes of `tensors`."""
    parts = tf.split(flat, [tensor.shape.num_elements() for tensor in tensors])
    return [tf.reshape(part, t.shape) for part, t in zip(parts, tensors, strict=True)]
