"""The exchange of one process: all nodes are here, sums are formed in memory."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from terngrad.exchange.exchange import Exchange, tree_sum
from terngrad.limits import MAX_NODES
from terngrad.ops.kernels import Kernels
from terngrad.planes import plane_count


class LocalExchange(Exchange):
    """Towers on the devices of one process, one or more nodes on each; nothing leaves it."""

    def __init__(self, nodes: int, kernels: Kernels) -> None:
        """Joins `nodes` local nodes; `kernels` add their codes.

        Raises:
          ValueError: if `nodes` is not in [1, 65536].
        """
        if not 1 <= nodes <= MAX_NODES:
            raise ValueError(f"{nodes} nodes; allowed are 1 to {MAX_NODES}.")
        self._kernels = kernels
        self.first_node = 0
        self.local_nodes = self.size = nodes
        self.bytes_sent = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.bytes_received = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._nodes = tf.Variable(nodes, dtype=tf.int32, trainable=False)

    def max(self, vectors: Sequence[tf.Tensor], name: str) -> tf.Tensor:
        """See base class."""
        del name
        return tf.reduce_max(tf.stack(vectors), axis=0)

    def sum(self, codes: Sequence[tf.Tensor], name: str) -> tf.Tensor:
        """See base class."""
        del name
        return self._kernels.sum(codes, plane_count(self.size))

    def float_sum(self, values: Sequence[Sequence[tf.Tensor]], name: str) -> list[tf.Tensor]:
        """See base class."""
        del name
        return [tree_sum(each) for each in zip(*values, strict=True)]

    def nodes(self, total: tf.Tensor) -> tf.Tensor:
        """See base class."""
        del total
        return self._nodes.read_value()
