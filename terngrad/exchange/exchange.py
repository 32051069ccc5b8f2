"""The contract of an exchange: three operations on a group of nodes.

A process computes one or more of the group's nodes. Each operation takes what each local node has,
joins it with that of the other processes, and returns the result that all nodes share. Operations
of one step may overlap; `name` tells the processes which belong together, and must be the same on
all of them and unique among a program's operations with different shapes.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from terngrad.limits import MAX_NODES, MAX_SUM


@dataclasses.dataclass(frozen=True)
class Payload:
    """Bytes of one variable that one node sends and receives in a step (headers not counted)."""

    sent: float
    received: float


class Exchange(abc.ABC):
    """Operations over all nodes of a training run.

    Attributes:
      first_node: global index of this process' first node; it computes a consecutive block.
      local_nodes: nodes that this process computes.
      num_nodes: nodes in the group, on all processes.
      sums_local_nodes: whether a process hands in what its nodes have together.
      bytes_sent: int64 scalar variable, bytes that left this process since the start.
      bytes_received: int64 scalar variable, bytes that reached it.
    """

    sums_local_nodes = True

    def __init__(self, rank: int, processes: int, local_nodes: int) -> None:
        """Joins `local_nodes` nodes of each of `processes` processes, of which this is `rank`.

        Raises:
          ValueError: there is no node, or there are more than 65536.
        """
        self.local_nodes = local_nodes
        self.first_node = rank * local_nodes
        self.num_nodes = processes * local_nodes
        if not 1 <= self.num_nodes <= MAX_NODES:
            raise ValueError(f"{self.num_nodes} nodes; allowed are 1 to {MAX_NODES}.")
        self.bytes_sent = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.bytes_received = tf.Variable(0, dtype=tf.int64, trainable=False)
        # A variable, which no graph optimizer folds: a division by a constant would become a
        # product with its reciprocal, which rounds differently.
        self._nodes = tf.Variable(self.num_nodes, dtype=tf.int32, trainable=False)

    @abc.abstractmethod
    def max(self, vectors: Sequence[tf.Tensor], name: str) -> tf.Tensor:
        """Elementwise largest of float32 vectors, one a local node."""

    @abc.abstractmethod
    def sum(self, codes: Sequence[tf.Tensor], name: str, max_code: int) -> tf.Tensor:
        """Exact integer sum of the nodes' codes.

        Args:
          codes: of each local node, uint32 [M / 32, k] (see planes.py).
          name: see above.
          max_code: largest magnitude of a node's code.

        Returns:
          uint32 [M / 32, planes.plane_count(num_nodes * max_code)].

        Raises:
          ValueError: sums could be larger than `limits.MAX_SUM`.
        """

    @abc.abstractmethod
    def float_sum(self, values: Sequence[Sequence[tf.Tensor]], name: str) -> list[tf.Tensor]:
        """Sums of float32 tensors over the nodes, added in one binary tree over the global nodes.

        Args:
          values: of each local node, some tensors.
          name: see above.

        Returns:
          As many tensors as a node has.
        """

    def nodes(self, total: tf.Tensor) -> tf.Tensor:
        """Nodes of which `total`, a result of this exchange, was made.

        Returns:
          int32 scalar that no graph optimizer can fold; at most `num_nodes`.
        """
        del total
        return self._nodes.read_value()

    def settled(self) -> contextlib.AbstractContextManager[None]:
        """Operations that are made within change something only when the step's results are final.

        To be entered once in a step, when all that it exchanges has been asked for.
        """
        return contextlib.nullcontext()

    def took_part(self) -> tf.Tensor:
        """Whether this process' nodes are part of the step's results: bool scalar.

        To be asked within `settled`.
        """
        return tf.constant(True)

    def insist(self) -> None:  # noqa: B027 (nothing to do where all take part in every step)
        """Lets this process' next gradients count, where steps are made without some."""

    def traffic(self, payload: Payload) -> Payload:
        """Bytes that this process sends and receives for a codec's payload.

        In a process alone, where nothing is sent, those of one node.
        """
        return payload

    def mean(self, values: Sequence[Sequence[tf.Tensor]], name: str) -> list[tf.Tensor]:
        """Means of float tensors over the nodes; formed in float32, returned in the given type."""
        if self.num_nodes == 1:
            return list(values[0])
        wide = [[tf.cast(value, tf.float32) for value in node] for node in values]
        totals = self.float_sum(wide, name)
        nodes = tf.cast(self.nodes(totals[0]), tf.float32)
        return [
            tf.cast(total / nodes, value.dtype)
            for total, value in zip(totals, values[0], strict=True)
        ]

    def largest_sum(self, max_code: int) -> int:
        """Largest magnitude of a sum of codes over all nodes.

        Raises:
          ValueError: it is larger than `limits.MAX_SUM`.
        """
        largest = self.num_nodes * max_code
        if largest > MAX_SUM:
            raise ValueError(
                f"codes up to {max_code} of {self.num_nodes} nodes: their sums reach {largest}; "
                f"allowed is up to {MAX_SUM}."
            )
        return largest


def tree_sum(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Adds neighbours pairwise until one is left, so that aligned blocks of nodes add alike.

    The order holds only where Grappler's arithmetic optimization is off: it flattens add trees.
    """
    items = list(values)
    while len(items) > 1:
        pairs = [items[i] + items[i + 1] for i in range(0, len(items) - 1, 2)]
        items = pairs + items[len(items) - len(items) % 2 :]
    return items[0]
