"""The contract of a codec: what one node measures, writes and reads back.

    measure -> agree on scales -> encode -> deliver the mean over the nodes

The float codec has the full contract too: it is the null object that ternary codes are compared
with.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from terngrad.draws import DrawKey
from terngrad.exchange.exchange import Exchange


@dataclasses.dataclass(frozen=True)
class Measured:
    """What a node knows of its gradients before encoding them.

    Attributes:
      bounds: float32 [v], magnitude to which each of v variables is clipped.
      scales: float32 [v], largest clipped magnitude; infinite where a gradient is not finite.
    """

    bounds: tf.Tensor
    scales: tf.Tensor


@dataclasses.dataclass(frozen=True)
class Payload:
    """Bytes of one variable that one node sends and receives in a step (headers not counted)."""

    sent: float
    received: float


class Codec(abc.ABC):
    """Writes the gradients of a fixed list of v variables for the exchange."""

    variables: tuple[int, ...]  # indices in the layout, in the order of gradients and scales
    name: str  # of its operations on the exchange; unique among the codecs of a program

    @property
    def scale_count(self) -> int:
        """Length of the vector of scales: v, or 0 for a codec without scales."""
        return len(self.variables)

    @abc.abstractmethod
    def measure(self, gradients: Sequence[tf.Tensor]) -> Measured:
        """Statistics of one node's v gradients."""

    def agree(self, exchange: Exchange, measured: Sequence[Measured]) -> list[tf.Tensor]:
        """Scales float32 [v] that each local node encodes with: the largest over all nodes."""
        return [exchange.max([m.scales for m in measured], self.name)] * len(measured)

    @abc.abstractmethod
    def encode(
        self, gradients: Sequence[tf.Tensor], bounds: tf.Tensor, scales: tf.Tensor, key: DrawKey
    ) -> list[tf.Tensor]:
        """One node's gradients as they travel."""

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
