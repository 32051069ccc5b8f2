"""Two example codecs, for study: each changes one property of the ternary codec.

--scaler_sharing=False and --use_encoding=False name them. Like a codec of a user's own they are
found by MODULE:CLASS, and use only what the base class and the exchange offer to all codecs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

from terngrad import planes, ternary
from terngrad.codecs.codec import Delivered, Measured
from terngrad.codecs.integer_codec import SCALE_BYTES, IntegerCodec
from terngrad.draws import DrawKey
from terngrad.exchange.exchange import Exchange, Payload
from terngrad.ops.gradient_kernels import EncodeInputs

_FLOAT_BYTES = 4.0


class OwnScaleTernaryCodec(IntegerCodec):
    """Each node scales by its own maximum: sums of codes have no meaning then."""

    max_code = 1
    scales_parts = True

    def agree(self, exchange: Exchange, measured: Sequence[Measured]) -> list[tf.Tensor]:
        """See base class."""
        del exchange
        return [m.scales for m in measured]

    def encode(
        self, gradients: Sequence[tf.Tensor], bounds: tf.Tensor, scales: tf.Tensor, key: DrawKey
    ) -> list[tf.Tensor]:
        """Returns packed codes: one tensor, uint32 [M / 32, 2]."""
        encode, parts = self.kernels.encode, self.parts
        return [encode(gradients, self.variables, bounds, scales, key, parts=parts)]

    def deliver(
        self,
        exchange: Exchange,
        nodes: Sequence[EncodeInputs],
        devices: Sequence[str],
        as_sums: bool = False,
    ) -> Delivered:
        """Decodes each node's codes separately, then forms the mean of the floats."""
        encoded = self.encode_each(nodes, devices)
        decoded = [self.sent(c, n.scales) for c, n in zip(encoded, nodes, strict=True)]
        return Delivered(encoded, exchange.mean(decoded, self.name))

    def payload(self, nodes: int, local_nodes: int | None) -> dict[int, Payload]:
        """See base class: nodes send codes; processes send floats, as `deliver` decodes first."""
        codes = super().payload(nodes, local_nodes)
        floats = _floats(self)
        if local_nodes is not None:
            return {i: Payload(n, n) for i, n in floats.items()}
        return {i: Payload(codes[i].sent, n) for i, n in floats.items()}


class UnpackedTernaryCodec(IntegerCodec):
    """Sends codes as float32, as simulations do: the same numbers in sixteen times the bytes."""

    max_code = 1
    scales_parts = True

    def encode(
        self, gradients: Sequence[tf.Tensor], bounds: tf.Tensor, scales: tf.Tensor, key: DrawKey
    ) -> list[tf.Tensor]:
        """Returns codes as floats: one tensor, float32 [M]."""
        encode, parts = self.kernels.encode, self.parts
        words = encode(gradients, self.variables, bounds, scales, key, parts=parts)
        return [planes.unpack(words)[: sum(map(math.prod, self.shapes))]]

    def deliver(
        self,
        exchange: Exchange,
        nodes: Sequence[EncodeInputs],
        devices: Sequence[str],
        as_sums: bool = False,
    ) -> Delivered:
        """Decodes the sums of whole numbers, which are exact in float32."""
        encoded = self.encode_each(nodes, devices)
        (total,) = exchange.float_sum(encoded, self.name)
        return Delivered(encoded, self.decode(total, nodes[0].scales, exchange.nodes(total)))

    def decode(self, words: tf.Tensor, scales: tf.Tensor, nodes: tf.Tensor) -> list[tf.Tensor]:
        """See base class; `words` are floats."""
        units = self.by_value(ternary.mean_scale(scales, nodes))
        sums = tf.split(words, [math.prod(shape) for shape in self.shapes])
        each = zip(units, sums, self.shapes, strict=True)
        return [unit * tf.reshape(total, shape) for unit, total, shape in each]

    def share_of_zeros(self, encoded: Sequence[tf.Tensor]) -> dict[int, tf.Tensor]:
        """See base class; codes are floats."""
        codes = self.sent(encoded, tf.ones([self.scale_count]))
        shares = [tf.reduce_mean(tf.cast(c == 0.0, tf.float32)) for c in codes]
        return dict(zip(self.variables, shares, strict=True))

    def payload(self, nodes: int, local_nodes: int | None) -> dict[int, Payload]:
        """See base class."""
        del nodes, local_nodes
        pairs = zip(_floats(self).items(), self.parts, strict=True)
        octets = {i: n + SCALE_BYTES * parts.count for (i, n), parts in pairs}
        return {i: Payload(n, n) for i, n in octets.items()}


def _floats(codec: IntegerCodec) -> dict[int, float]:
    """Returns the bytes of each variable as float32, by its index in the layout."""
    pairs = zip(codec.variables, codec.shapes, strict=True)
    return {i: _FLOAT_BYTES * math.prod(shape) for i, shape in pairs}
