"""The contract of an exchange: three operations on a group of nodes.

A process computes one or more of the group's nodes. Each operation takes the values of the local
nodes, combines them with those of the other processes, and returns the result, which all nodes
share. Operations of one step may overlap: the processes match them by `name`, which must be the
same on all of them. Operations with different shapes must have different names.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import re
from collections.abc import Sequence

import tensorflow as tf

from terngrad.limits import MAX_NODES, MAX_SUM
from terngrad.ops.kernels import EncodeInputs, Kernels

_FINGERPRINT = re.compile(r"^[0-9a-f]{32}/")


@dataclasses.dataclass(frozen=True)
class Payload:
    """Bytes of one variable that one node sends and receives in a step, without headers."""

    sent: float
    received: float


@dataclasses.dataclass(frozen=True)
class Encoded:
    """A node's codes, uint32 [M / 32, 2], and the mean gradients over all nodes."""

    codes: tf.Tensor
    means: list[tf.Tensor]


class Exchange(abc.ABC):
    """Operations over all nodes of a training run.

    Attributes:
      first_node: global index of this process' first node; its nodes are consecutive.
      local_nodes: nodes that this process computes.
      num_nodes: nodes in the group, on all processes.
      sums_local_nodes: whether a process sends the sum over its nodes, not each node's codes.
      packs_codes: whether codes travel in a prefix code (terngrad/prefix_code.py), in fewer bytes
        than their planes.
      steps: int64 scalar variable, steps whose results were final; see `count_step`.
      bytes_sent: int64 scalar variable, bytes that this process has sent.
      bytes_received: int64 scalar variable, bytes that it has received.
    """

    sums_local_nodes = True
    packs_codes = False

    def __init__(self, rank: int, processes: int, local_nodes: int) -> None:
        """Joins `processes` processes of `local_nodes` nodes each; this one has index `rank`.

        Raises:
          ValueError: there are no nodes, or more than 65536.
        """
        self.local_nodes = local_nodes
        self.first_node = rank * local_nodes
        self.num_nodes = processes * local_nodes
        if not 1 <= self.num_nodes <= MAX_NODES:
            raise ValueError(f"{self.num_nodes} nodes; allowed are 1 to {MAX_NODES}.")
        self.steps = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.bytes_sent = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.bytes_received = tf.Variable(0, dtype=tf.int64, trainable=False)
        # A variable, because graph optimizers turn a division by a constant into a product with
        # its reciprocal, which rounds differently.
        self._nodes = tf.Variable(self.num_nodes, dtype=tf.int32, trainable=False)

    @abc.abstractmethod
    def max(self, vectors: Sequence[tf.Tensor], name: str) -> tf.Tensor:
        """Returns the elementwise largest of float32 vectors, one for each local node."""

    @abc.abstractmethod
    def sum(self, codes: Sequence[tf.Tensor], name: str, max_code: int) -> tf.Tensor:
        """Returns the exact integer sum of the nodes' codes.

        Args:
          codes: uint32 [M / 32, k] of each local node (see planes.py).
          name: see above.
          max_code: largest magnitude of a node's code.

        Returns:
          uint32 [M / 32, planes.plane_count(num_nodes * max_code)].

        Raises:
          ValueError: a sum could exceed `limits.MAX_SUM`.
        """

    def mean_of_codes(
        self,
        codes: Sequence[tf.Tensor],
        name: str,
        max_code: int,
        units: tf.Tensor,
        shapes: Sequence[Sequence[int]],
        kernels: Kernels,
    ) -> list[tf.Tensor]:
        """Returns the means of coded variables: `sum`, decoded.

        Args:
          codes: see `sum`.
          name: see above.
          max_code: see `sum`.
          units: float32 [v], the value of a code of 1 of each variable.
          shapes: of the v variables, in the order of their codes.
          kernels: decode the sum.
        """
        total = self.sum(codes, name, max_code)
        return kernels.decode(total, units, self.nodes(total), shapes)

    def mean_while_encoding(
        self,
        inputs: EncodeInputs,
        variables: Sequence[int],
        name: str,
        shapes: Sequence[Sequence[int]],
    ) -> Encoded | None:
        """Returns ternary codes of the only local node and their means, or None: not offered.

        Native kernels encode, and codes are sent while others are still being encoded.

        Args:
          inputs: gradients are float32, of the variables of a bucket in its order; the scales are
            those of the codes and of the means.
          variables: see `Kernels.encode`.
          name: see above.
          shapes: of the variables.
        """
        del inputs, variables, name, shapes
        return None

    def sum_while_encoding(
        self, inputs: EncodeInputs, variables: Sequence[int], name: str, elements: int
    ) -> tuple[tf.Tensor, tf.Tensor] | None:
        """Returns ternary codes of the only local node and their `sum`, or None: not offered.

        Args:
          inputs: see `mean_while_encoding`.
          variables: see `Kernels.encode`.
          name: see above.
          elements: number of values of the variables.
        """
        del inputs, variables, name, elements
        return None

    @abc.abstractmethod
    def float_sum(self, values: Sequence[Sequence[tf.Tensor]], name: str) -> list[tf.Tensor]:
        """Returns sums of float32 tensors, added in one binary tree over the global nodes.

        Args:
          values: tensors of each local node.
          name: see above.

        Returns:
          One sum for each tensor of a node.
        """

    def nodes(self, total: tf.Tensor) -> tf.Tensor:
        """Returns the number of nodes in `total`, a result of this exchange.

        Returns:
          int32 scalar that no graph optimizer can fold. It is `num_nodes`, or less if a step is
          made without some nodes.
        """
        del total
        return self._nodes.read_value()

    def awaited(self, gradients: Sequence[Sequence[tf.Tensor]]) -> list[tf.Tensor]:
        """Returns which of the local nodes' gradients an update waits for, beside its own mean."""
        del gradients
        return []

    def settled(self) -> contextlib.AbstractContextManager[None]:
        """Delays the operations made within it until the step's results are final.

        Enter it once in a step, after all exchanges of the step are under way.
        """
        return contextlib.nullcontext()

    def count_step(self) -> None:
        """Counts a step; call it within `settled`. Bytes a step are bytes over this count."""
        self.steps.assign_add(1)

    def took_part(self) -> tf.Tensor:
        """Returns whether this process' nodes are in the step's results: bool scalar.

        Call it within `settled`.
        """
        return tf.constant(True)

    def insist(self) -> None:  # noqa: B027 (does nothing if all nodes are in every step)
        """Makes the next steps wait for this process' gradients, if steps are made without some."""

    @property
    def nodes_in_result(self) -> int:
        """Nodes for whose codes the sums that this process receives have planes."""
        return self.num_nodes

    def traffic(self, payload: Payload) -> Payload:
        """Returns the bytes that this process sends and receives for a codec's payload.

        Where the engine `packs_codes`, they are the most that it may need. If there is only one
        process, which sends nothing, these are the bytes of one node.
        """
        return payload

    def mean(self, values: Sequence[Sequence[tf.Tensor]], name: str) -> list[tf.Tensor]:
        """Returns means of float tensors, computed in float32 and cast to their own type."""
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
        """Returns the largest magnitude of a sum of codes over all nodes.

        Raises:
          ValueError: it exceeds `limits.MAX_SUM`.
        """
        largest = self.num_nodes * max_code
        if largest > MAX_SUM:
            raise ValueError(
                f"codes up to {max_code} of {self.num_nodes} nodes: their sums reach {largest}; "
                f"allowed is up to {MAX_SUM}."
            )
        return largest


def begin_span(name: str, kind: str) -> tf.profiler.experimental.Trace:
    """Returns what TensorBoard's profiler shows from now on until its `__exit__`, in any thread.

    Args:
      name: of an operation. The fingerprint of a layout, with which those of gradients begin, is
        left out.
      kind: of operation, by which the profiler groups spans.
    """
    return tf.profiler.experimental.Trace(f"{_FINGERPRINT.sub('', name)}:{kind}")


def tree_sum(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Adds neighbours pairwise until one value is left, so that aligned blocks of nodes add alike.

    Grappler's arithmetic optimization must be off, because it flattens trees of additions.
    """
    items = list(values)
    while len(items) > 1:
        pairs = [items[i] + items[i + 1] for i in range(0, len(items) - 1, 2)]
        items = pairs + items[len(items) - len(items) % 2 :]
    return items[0]
