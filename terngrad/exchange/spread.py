"""The shared part of all exchanges whose nodes are spread over several processes.

A process first joins its own nodes in memory. The engine then joins one flat tensor of each process
with those of the others.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence

import tensorflow as tf

from terngrad.exchange.exchange import Exchange, tree_sum
from terngrad.ops.kernels import Kernels
from terngrad.planes import plane_count


class SpreadExchange(Exchange):
    """Every process computes as many consecutive nodes.

    For sums of floats that do not depend on how nodes are spread over processes (law 4), the number
    of nodes of a process must be a power of two.
    """

    def __init__(self, rank: int, processes: int, local_nodes: int, kernels: Kernels) -> None:
        """Joins `local_nodes` nodes of each process, whose codes `kernels` add.

        Raises:
          ValueError: there is no node, or there are more than 65536.
        """
        super().__init__(rank, processes, local_nodes)
        self._kernels = kernels

    @abc.abstractmethod
    def _join_max(self, local: tf.Tensor, name: str) -> tf.Tensor:
        """Elementwise largest of the processes' float32 [n]."""

    @abc.abstractmethod
    def _join_codes(self, local: tf.Tensor, name: str, max_code: int) -> tf.Tensor:
        """Sum of the processes' uint32 [G, k] over all nodes, whose codes reach `max_code`."""

    @abc.abstractmethod
    def _join_floats(self, local: tf.Tensor, name: str) -> tf.Tensor:
        """Sum of the processes' float32 [n]."""

    @abc.abstractmethod
    def _join_halves(self, local: tf.Tensor, name: str) -> tf.Tensor:
        """Mean of the processes' float32 [n], which is rounded to float16 on each way."""

    def max(self, vectors: Sequence[tf.Tensor], name: str) -> tf.Tensor:
        """See base class."""
        return self._join_max(tf.reduce_max(tf.stack(vectors), axis=0), name)

    def sum(self, codes: Sequence[tf.Tensor], name: str, max_code: int) -> tf.Tensor:
        """See base class."""
        self.largest_sum(max_code)
        local = self._kernels.sum(codes, plane_count(self.local_nodes * max_code))
        return self._join_codes(local, name, max_code)

    def float_sum(self, values: Sequence[Sequence[tf.Tensor]], name: str) -> list[tf.Tensor]:
        """See base class."""
        local = [tree_sum(each) for each in zip(*values, strict=True)]
        return _like(self._join_floats(_flat(local), name), local)

    def mean(self, values: Sequence[Sequence[tf.Tensor]], name: str) -> list[tf.Tensor]:
        """See base class; float16 also travels as float16, rounded again on each way."""
        if values[0][0].dtype != tf.float16:
            return super().mean(values, name)
        wide = [[tf.cast(value, tf.float32) for value in node] for node in values]
        local = [tree_sum(each) / self.local_nodes for each in zip(*wide, strict=True)]
        means = self._join_halves(_flat(local), name)
        return [tf.cast(mean, tf.float16) for mean in _like(means, local)]


def _flat(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)


def _like(flat: tf.Tensor, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Cuts a flat tensor into tensors of the given ones' shapes."""
    parts = tf.split(flat, [tensor.shape.num_elements() for tensor in tensors])
    return [tf.reshape(part, t.shape) for part, t in zip(parts, tensors, strict=True)]
