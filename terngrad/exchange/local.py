"""The exchange of one process: it computes all nodes and adds in memory."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from terngrad.exchange.exchange import Exchange, tree_sum
from terngrad.ops.gradient_kernels import GradientKernels


class LocalExchange(Exchange):
    """All nodes on the devices of one process, one or more on each; nothing is sent."""

    sums_local_nodes = False

    def __init__(self, nodes: int, kernels: GradientKernels) -> None:
        """Joins `nodes` local nodes; `kernels` add their codes.

        Raises:
          ValueError: `nodes` is not in [1, 65536].
        """
        super().__init__(0, 1, nodes, kernels)

    def awaited(self, gradients: Sequence[Sequence[tf.Tensor]]) -> list[tf.Tensor]:
        """See base class: all of them. Here a mean is there at once.

        If it were applied at once, the backward pass might still need the weights, and TensorFlow
        would copy them first.
        """
        return [gradient for node in gradients for gradient in node]

    def float_sum(self, values: Sequence[Sequence[tf.Tensor]], name: str) -> list[tf.Tensor]:
        """See base class."""
        del name
        return [tree_sum(each) for each in zip(*values, strict=True)]

    def mean(self, values: Sequence[Sequence[tf.Tensor]], name: str) -> list[tf.Tensor]:
        """See base class; nothing travels."""
        return self._mean_of_sums(values, name)

    def _join_max(self, local: tf.Tensor, name: str) -> tf.Tensor:
        del name
        return local

    def _join_codes(self, local: tf.Tensor, name: str, max_code: int) -> tf.Tensor:
        del name, max_code
        return local

    def _scatter_codes(self, local: tf.Tensor, name: str, max_code: int) -> tf.Tensor:
        del name, max_code
        return local

    def _gather_codes(self, share: tf.Tensor, rows: int, name: str, max_code: int) -> tf.Tensor:
        del rows, name, max_code
        return share

    _join_floats = _join_halves = _join_max
