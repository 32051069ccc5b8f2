"""The contract of a codec: what a node measures, encodes, keeps and decodes.

    correct -> measure -> agree on scales -> encode and deliver the mean -> update the memory

The float codec fulfils the whole contract, too. Other codecs are compared with it.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from terngrad.draws import DrawKey
from terngrad.exchange.exchange import Exchange, Payload
from terngrad.ops.gradient_kernels import EncodeInputs, Sums

# The part of its gradients that a node keeps for the next step: float32, in the shapes of the
# codec's variables. Empty for a codec without a memory.
NodeMemory = list[tf.Tensor]

# The methods that each attribute describes or replaces. A subclass that overrides one of them loses
# the inherited attribute.
_DEPENDENT_ATTRIBUTES = {
    "encoder": ("encode", "encode_each"),
    "sums_codes": ("deliver", "decode"),
    "correct_and_measure": ("correct", "measure"),
    "scales_parts": ("measure", "encode", "deliver", "decode", "update"),
}


@dataclasses.dataclass(frozen=True)
class Measured:
    """Statistics of a node's gradients before encoding.

    Attributes:
      bounds: float32 [p], magnitude to which each of the p parts of the variables is clipped.
      scales: float32 [p], largest clipped magnitude; infinite where a gradient is not finite.
    """

    bounds: tf.Tensor
    scales: tf.Tensor


class Delivered(NamedTuple):
    """The result of `Codec.deliver` for the local nodes' gradients.

    Attributes:
      codes: result of `Codec.encode` for each local node.
      means: mean gradients of the codec's variables over all nodes, in their shapes, or the sums
        of codes that stand for them.
    """

    codes: list[list[tf.Tensor]]
    means: list[tf.Tensor] | Sums


class Codec(abc.ABC):
    """Encodes the gradients of a fixed list of v variables for the exchange.

    Each variable is one part or several, p in all, with a scale each (`Policy.scale_by`).

    A codec with a memory overrides `init`, `correct` and `update`. It holds no state itself: the
    training step passes in each node's memory and gets the next one back.

    Some attributes describe or replace methods: `encoder`, `sums_codes`, `scales_parts` and
    `correct_and_measure` (see `_DEPENDENT_ATTRIBUTES`). In a subclass that overrides such a method
    the attribute falls back to `Codec`'s default, unless the subclass sets it.

    Attributes:
      variables: indices in the layout, in the order of gradients and scales.
      name: name of its operations on the exchange; unique among the codecs of a program.
      max_code: largest magnitude of a code; 0 = gradients are sent as floats.
      encoder: that of `ternary.ENCODERS` whose codes `encode` returns. Its kernel also encodes
        any range of them, so that an exchange can send some while it encodes others; None = no
        kernel does what `encode` does.
      sums_codes: whether means are the decoded sums of codes, so that others can add and decode
        them without the codec; then `deliver` gives sums where they are wanted.
      scales_parts: whether a variable may have several parts. False = bounds and scales are those
        of variables, and `make_codecs` refuses a policy with another `scale_by`.
      antithetic: whether nodes 2 k and 2 k + 1 share their draws; see draws.py.
      sum_codec: the codec that codes the sums again on their way back (codecs/sum_codec.py); "" =
        they travel as they are.
    """

    variables: tuple[int, ...]
    name: str
    max_code: int = 0
    encoder: str | None = None
    sums_codes: bool = False
    scales_parts: bool = False
    antithetic: bool = False
    sum_codec: str = ""

    def __init_subclass__(cls, **arguments: object) -> None:
        """Resets attributes that describe a method which this class overrides."""
        super().__init_subclass__(**arguments)
        for name, methods in _DEPENDENT_ATTRIBUTES.items():
            if any(_depth(cls, method) < _depth(cls, name) for method in methods):
                setattr(cls, name, getattr(Codec, name))

    @property
    def scale_count(self) -> int:
        """Length p of the vector of scales; 0 for a codec without scales."""
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

    def correct_and_measure(
        self, gradients: Sequence[tf.Tensor], memory: NodeMemory
    ) -> tuple[list[tf.Tensor], Measured]:
        """Returns the results of `correct` and of `measure`; a codec may compute both at once."""
        corrected = self.correct(gradients, memory)
        return corrected, self.measure(corrected)

    def agree(self, exchange: Exchange, measured: Sequence[Measured]) -> list[tf.Tensor]:
        """Returns each local node's scales, float32 [p]: the largest over all nodes."""
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
        nodes: Sequence[EncodeInputs],
        devices: Sequence[str],
        as_sums: bool = False,
    ) -> Delivered:
        """Encodes the local nodes' gradients and combines them with those of the others.

        Args:
          exchange: combines them.
          nodes: (corrected) gradients of each local node, with the scales of `agree`.
          devices: of each local node; only codes leave it.
          as_sums: whether means need not be decoded, if they are decoded sums of codes.
        """

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


def _depth(codec: type[Codec], name: str) -> int:
    """Returns the index in the method resolution order of the class that defines an attribute."""
    classes = codec.__mro__
    return next((i for i, each in enumerate(classes) if name in vars(each)), len(classes))
