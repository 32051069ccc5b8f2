"""The contract of a codec: what a node measures, encodes, keeps and decodes.

    correct -> measure -> agree on scales -> encode -> update the memory, deliver the mean

The float codec fulfils the whole contract, too. Other codecs are compared with it.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from terngrad.draws import DrawKey
from terngrad.exchange.exchange import Exchange, Payload
from terngrad.ops.kernels import EncodeInputs, Sums

# The part of its gradients that a node keeps for the next step: float32, in the shapes of the
# codec's variables. Empty for a codec without a memory.
NodeMemory = list[tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Measured:
    """Statistics of a node's gradients before encoding.

    Attributes:
      bounds: float32 [v], magnitude to which each of the v variables is clipped.
      scales: float32 [v], largest clipped magnitude; infinite where a gradient is not finite.
    """

    bounds: tf.Tensor
    scales: tf.Tensor


class Codec(abc.ABC):
    """Encodes the gradients of a fixed list of v variables for the exchange.

    A codec with a memory overrides `init`, `correct` and `update`. It holds no state itself: the
    training step passes in each node's memory and gets the next one back.

    Attributes:
      variables: indices in the layout, in the order of gradients and scales.
      name: name of its operations on the exchange; unique among the codecs of a program.
      max_code: largest magnitude of a code; 0 = gradients are sent as floats.
    """

    variables: tuple[int, ...]
    name: str
    max_code: int = 0

    @property
    def scale_count(self) -> int:
        """Length of the vector of scales: v, or 0 for a codec without scales."""
        return len(self.variables)

    def init(self) -> NodeMemory:
        """Returns a node's memory before its first step: zeros; empty without a memory."""
        return []

    def correct(self, gradients: Sequence[tf.Tensor], memory: NodeMemory) -> list[tf.Tensor]:
        """Returns what is encoded instead of a node's gradients, such as gradients + memory.

        If the others make the step without this node, nothing is sent, and this becomes its memory.
        """
        del memory
        return list(gradients)

    @abc.abstractmethod
    def measure(self, gradients: Sequence[tf.Tensor]) -> Measured:
        """Returns statistics of one node's v (corrected) gradients."""

    def agree(self, exchange: Exchange, measured: Sequence[Measured]) -> list[tf.Tensor]:
        """Returns each local node's scales, float32 [v]: the largest over all nodes."""
        return [exchange.max([m.scales for m in measured], self.name)] * len(measured)

    @abc.abstractmethod
    def encode(
        self, gradients: Sequence[tf.Tensor], bounds: tf.Tensor, scales: tf.Tensor, key: DrawKey
    ) -> list[tf.Tensor]:
        """Returns one node's (corrected) gradients as they are sent."""

    def encode_each(
        self, nodes: Sequence[EncodeInputs], devices: Sequence[str]
    ) -> list[list[tf.Tensor]]:
        """Returns the result of `encode` for each local node, on its device."""
        encoded = []
        for inputs, device in zip(nodes, devices, strict=True):
            with tf.device(device):
                encoded.append(self.encode(*inputs))
        return encoded

    def update(
        self, corrected: Sequence[tf.Tensor], encoded: Sequence[tf.Tensor], scales: tf.Tensor
    ) -> NodeMemory:
        """Returns the node's memory after a step that it took part in: what was not sent.

        Law 9: the sent part plus the new memory equal the gradient plus the old memory.

        Args:
          corrected: result of `correct`.
          encoded: result of `encode`.
          scales: the scales that `encode` used.
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
        """Returns the mean gradients of the v variables over all nodes.

        Args:
          exchange: combines the buckets of the local nodes with those of the others.
          encoded: result of `encode` for each local node.
          scales: scales that each local node encoded with.
        """

    def encode_and_deliver(
        self,
        exchange: Exchange,
        nodes: Sequence[EncodeInputs],
        devices: Sequence[str],
    ) -> tuple[list[list[tf.Tensor]], list[tf.Tensor]]:
        """Returns the results of `encode` for each local node, on its device, and of `deliver`."""
        encoded = self.encode_each(nodes, devices)
        return encoded, self.deliver(exchange, encoded, [node.scales for node in nodes])

    def encode_and_sum(
        self,
        exchange: Exchange,
        nodes: Sequence[EncodeInputs],
        devices: Sequence[str],
    ) -> tuple[list[list[tf.Tensor]], Sums] | None:
        """Returns `encode_and_deliver` with means that are not decoded yet.

        None, and nothing is done, if the codec's means are no decoded sums of codes.
        """
        del exchange, nodes, devices
        return None

    @abc.abstractmethod
    def payload(self, nodes: int, local_nodes: int | None) -> dict[int, Payload]:
        """Returns, by variable, the bytes sent for a sum, and those received, in planes.

        Args:
          nodes: number of nodes in a received sum.
          local_nodes: None = each node sends its own codes; a number = a process sends the sum of
            this many nodes.
        """

    def share_of_zeros(self, encoded: Sequence[tf.Tensor]) -> dict[int, tf.Tensor]:
        """Returns the share of zeros in one node's codes by variable; empty without codes."""
        del encoded
        return {}
