"""The exchange of one process: it computes all nodes and adds in memory."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from terngrad.exchange.exchange import Exchange, tree_sum
from terngrad.ops.kernels import Kernels
from terngrad.planes import plane_count


class LocalExchange(Exchange):
    """All nodes on the devices of one process, one or more on each; nothing is sent."""

    sums_local_nodes = False

    def __init__(self, nodes: int, kernels: Kernels) -> None:
        """Joins `nodes` local nodes; `kernels` add their codes.

        Raises:
          ValueError: `nodes` is not in [1, 65536].
        """
        super().__init__(0, 1, nodes)
        self._kernels = kernels

    def awaited(self, gradients: Sequence[Sequence[tf.Tensor]]) -> list[tf.Tensor]:
        """See base class: all of them. Here a mean is there at once.

        If it were applied at once, the backward pass might still need the weights, and TensorFlow
        would copy them first.
        """
        return [gradient for node in gradients for gradient in node]

    def max(self, vectors: Sequence[tf.Tensor], name: str) -> tf.Tensor:
        """See base class."""
        del name
        return tf.reduce_max(tf.stack(vectors), axis=0)

    def sum(self, codes: Sequence[tf.Tensor], name: str, max_code: int) -> tf.Tensor:
        """See base class."""
        del name
        return self._kernels.sum(codes, plane_count(self.largest_sum(max_code)))

    def float_sum(self, values: Sequence[Sequence[tf.Tensor]], name: str) -> list[tf.Tensor]:
        """See base class."""
        del name
        return [tree_sum(each) for each in zip(*values, strict=True)]
