"""The contract of an exchange: three operations on a group of nodes.

A process computes one or more of the group's nodes. Each operation takes what each local node has,
joins it with that of the other processes, and returns the result that all nodes share. Operations
of one step may overlap; `name` tells the processes which belong together, and must be the same on
all of them and unique among a program's operations with different shapes.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

if TYPE_CHECKING:
    from terngrad.codecs.codec import Codec, Payload


class Exchange(abc.ABC):
    """Operations over all nodes of a training run.

    Attributes:
      first_node: global index of this process' first node; it computes a consecutive block.
      local_nodes: nodes that this process computes.
      size: nodes in the group.
      bytes_sent: int64 scalar variable, bytes that left this process since the start.
      bytes_received: int64 scalar variable, bytes that reached it.
    """

    first_node: int
    local_nodes: int
    size: int
    bytes_sent: tf.Variable
    bytes_received: tf.Variable

    @abc.abstractmethod
    def max(self, vectors: Sequence[tf.Tensor], name: str) -> tf.Tensor:
        """Elementwise largest of float32 vectors, one a local node."""

    @abc.abstractmethod
    def sum(self, codes: Sequence[tf.Tensor], name: str) -> tf.Tensor:
        """Exact sum of packed codes uint32 [M / 32, 2], in `planes.plane_count(size)` planes."""

    @abc.abstractmethod
    def float_sum(self, values: Sequence[Sequence[tf.Tensor]], name: str) -> list[tf.Tensor]:
        """Sums of float32 tensors over the nodes, added in one binary tree over the global nodes.

        Args:
          values: of each local node, some tensors.
          name: see above.

        Returns:
          As many tensors as a node has.
        """

    @abc.abstractmethod
    def nodes(self, total: tf.Tensor) -> tf.Tensor:
        """Nodes of which `total`, a result of this exchange, was made.

        Returns:
          int32 scalar that no graph optimizer can fold; `size`, unless a step is made without some.
        """

    def settled(self) -> contextlib.AbstractContextManager[None]:
        """Operations that are made within change something only when the step's results are final.

        To be entered once in a step, when all that it exchanges has been asked for.
        """
        return contextlib.nullcontext()

    def insist(self) -> None:  # noqa: B027 (nothing to do where all take part in every step)
        """Lets this process' next gradients count, where steps are made without some."""

    def payload(self, codec: Codec) -> dict[int, Payload]:
        """Bytes that this process sends and receives in a step by variable, without headers.

        In a process alone, where nothing is sent, those of one node.
        """
        return codec.payload(self.size)

    def mean(self, values: Sequence[Sequence[tf.Tensor]], name: str) -> list[tf.Tensor]:
        """Means of float tensors over the nodes; formed in float32, returned in the given type."""
        if self.size == 1:
            return list(values[0])
        wide = [[tf.cast(value, tf.float32) for value in node] for node in values]
        totals = self.float_sum(wide, name)
        nodes = tf.cast(self.nodes(totals[0]), tf.float32)
        return [
            tf.cast(total / nodes, value.dtype)
            for total, value in zip(totals, values[0], strict=True)
        ]


def tree_sum(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Adds neighbours pairwise until one is left, so that aligned blocks of nodes add alike.

    The order holds only where Grappler's arithmetic optimization is off: it flattens add trees.
    """
    items = list(values)
    while len(items) > 1:
        pairs = [items[i] + items[i + 1] for i in range(0, len(items) - 1, 2)]
        items = pairs + items[len(items) - len(items) % 2 :]
    return items[0]
