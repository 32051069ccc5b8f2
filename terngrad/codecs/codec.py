"""The contract of a codec: what one node measures, writes, keeps and reads back.

    correct -> measure -> agree on scales -> encode -> update the memory, deliver the mean

The float codec has the full contract too: it is the null object that other codecs are compared
with.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from terngrad.draws import DrawKey
from terngrad.exchange.exchange import Exchange, Payload

# What a node keeps of its gradients from one step to the next: float32, in the shapes of the
# codec's variables. Empty for a codec without a memory.
Memory = list[tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Measured:
    """What a node knows of its gradients before encoding them.

    Attributes:
      bounds: float32 [v], magnitude to which each of v variables is clipped.
      scales: float32 [v], largest clipped magnitude; infinite where a gradient is not finite.
    """

    bounds: tf.Tensor
    scales: tf.Tensor


class Codec(abc.ABC):
    """Writes the gradients of a fixed list of v variables for the exchange.

    A codec with a memory overrides `init`, `correct` and `update`. It holds no state itself: the
    training step passes each node's memory in and takes the next one out.

    Attributes:
      variables: indices in the layout, in the order of gradients and scales.
      name: of its operations on the exchange; unique among the codecs of a program.
      max_code: largest magnitude of a code; 0 = gradients travel as floats.
    """

    variables: tuple[int, ...]
    name: str
    max_code: int = 0

    @property
    def scale_count(self) -> int:
        """Length of the vector of scales: v, or 0 for a codec without scales."""
        return len(self.variables)

    def init(self) -> Memory:
        """The memory of a node before its first step: zeros, or nothing for no memory."""
        return []

    def correct(self, gradients: Sequence[tf.Tensor], memory: Memory) -> list[tf.Tensor]:
        """What is encoded in the place of a node's gradients, such as gradients + memory.

        It becomes the memory where a step is made without this node: nothing of it was sent.
        """
        del memory
        return list(gradients)

    @abc.abstractmethod
    def measure(self, gradients: Sequence[tf.Tensor]) -> Measured:
        """Statistics of one node's v (corrected) gradients."""

    def agree(self, exchange: Exchange, measured: Sequence[Measured]) -> list[tf.Tensor]:
        """Scales float32 [v] that each local node encodes with: the largest over all nodes."""
        return [exchange.max([m.scales for m in measured], self.name)] * len(measured)

    @abc.abstractmethod
    def encode(
        self, gradients: Sequence[tf.Tensor], bounds: tf.Tensor, scales: tf.Tensor, key: DrawKey
    ) -> list[tf.Tensor]:
        """One node's (corrected) gradients as they travel."""

    def update(
        self, corrected: Sequence[tf.Tensor], encoded: Sequence[tf.Tensor], scales: tf.Tensor
    ) -> Memory:
        """The node's memory after a step that it took part in: what was not sent.

        Law 9: what was sent and what is kept are together the gradient and what was kept before.

        Args:
          corrected: what `correct` returned.
          encoded: what `encode` made of it.
          scales: that it was encoded with.
        """
        del corrected, encoded, scales
        return []

    @abc.abstractmethod
    def deliver(
        self,
        exchange: Exchange,
        encoded: Sequence[Sequence[tf.Tensor]],
        scales: Sequence[tf.Tensor],
    ) -> list[tf.Tensor]:
        """Mean gradients of the v variables over all nodes.

        Args:
          exchange: joins the local nodes' buckets with those of the others.
          encoded: what each local node encoded.
          scales: what each local node encoded with.
        """

    @abc.abstractmethod
    def payload(self, nodes: int, local_nodes: int | None = None) -> dict[int, Payload]:
        """Bytes by variable of what is handed in for a sum over `nodes` nodes, and of the sum.

        Args:
          nodes: of the group.
          local_nodes: None = a node hands in what it encoded; a number = a process hands in what
            so many nodes have together.
        """

    def share_of_zeros(self, encoded: Sequence[tf.Tensor]) -> dict[int, tf.Tensor]:
        """Share of zeros among one node's codes by variable; empty where there are no codes."""
        del encoded
        return {}
