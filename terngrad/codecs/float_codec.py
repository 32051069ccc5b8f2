"""The float codec: gradients are sent as they are, or rounded to half precision."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

from terngrad.codecs.codec import Codec, Delivered, Measured
from terngrad.draws import DrawKey
from terngrad.exchange.exchange import Exchange, Payload
from terngrad.ops.gradient_kernels import EncodeInputs


class FloatCodec(Codec):
    """The baseline of every comparison.

    With float16, a node rounds the gradients that it sends. Means are formed in float32, and
    rounded again before they are sent back.
    """

    def __init__(
        self,
        variables: Sequence[int],
        shapes: Sequence[tuple[int, ...]],
        name: str,
        wire_type: tf.DType = tf.float32,
    ) -> None:
        """Codes the variables with these indices and shapes as float32 or float16."""
        self.variables = tuple(variables)
        self.name = name
        self._sizes = [math.prod(shape) for shape in shapes]
        self._wire_type = wire_type

    @property
    def scale_count(self) -> int:
        """See base class."""
        return 0

    def measure(self, gradients: Sequence[tf.Tensor]) -> Measured:
        """Returns empty bounds and scales: floats need neither."""
        del gradients
        return Measured(tf.zeros([0]), tf.zeros([0]))

    def agree(self, exchange: Exchange, measured: Sequence[Measured]) -> list[tf.Tensor]:
        """Returns the empty scales: there is nothing to agree on."""
        del exchange
        return [m.scales for m in measured]

    def encode(
        self, gradients: Sequence[tf.Tensor], bounds: tf.Tensor, scales: tf.Tensor, key: DrawKey
    ) -> list[tf.Tensor]:
        """See base class."""
        del bounds, scales, key
        return [tf.cast(gradient, self._wire_type) for gradient in gradients]

    def deliver(
        self,
        exchange: Exchange,
        nodes: Sequence[EncodeInputs],
        devices: Sequence[str],
        as_sums: bool = False,
    ) -> Delivered:
        """See base class."""
        del as_sums
        encoded = self.encode_each(nodes, devices)
        means = exchange.mean(encoded, self.name)
        return Delivered(encoded, [tf.cast(mean, tf.float32) for mean in means])

    def payload(self, nodes: int, local_nodes: int | None) -> dict[int, Payload]:
        """See base class."""
        del nodes, local_nodes
        sizes = [size * self._wire_type.size for size in self._sizes]
        return {i: Payload(n, n) for i, n in zip(self.variables, sizes, strict=True)}
