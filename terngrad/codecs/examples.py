"""Two example codecs, for study: each changes one property of the ternary codec.

--scaler_sharing=False and --use_encoding=False name them. Like a codec of a user's own they are
found by MODULE:CLASS, and use only what the base class and the exchange offer to all codecs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

from terngrad import planes, ternary
from terngrad.codecs.codec import Measured
from terngrad.codecs.integer_codec import SCALE_BYTES
from terngrad.codecs.ternary_codec import TernaryCodec
from terngrad.draws import DrawKey
from terngrad.exchange.exchange import Exchange, Payload

_FLOAT_BYTES = 4.0


class OwnScaleTernaryCodec(TernaryCodec):
    """Each node scales by its own maximum: sums of codes have no meaning then."""

    def agree(self, exchange: Exchange, measured: Sequence[Measured]) -> list[tf.Tensor]:
        """See base class."""
        del exchange
        return [m.scales for m in measured]

    def deliver(
        self,
        exchange: Exchange,
        encoded: Sequence[Sequence[tf.Tensor]],
        scales: Sequence[tf.Tensor],
    ) -> list[tf.Tensor]:
        """Decodes each node's codes separately, then forms the mean of the floats."""
        nodes = exchange.nodes(scales[0])
        one = nodes // nodes
        pairs = zip(encoded, scales, strict=True)
        decoded = [self.decode(words, scale, one) for (words,), scale in pairs]
        return exchange.mean(decoded, self.name)

    def payload(self, nodes: int, local_nodes: int | None) -> dict[int, Payload]:
        """See base class: nodes send codes; processes send floats, as `deliver` decodes first."""
        codes = super().payload(nodes, local_nodes)
        floats = _floats(self)
        if local_nodes is not None:
            return {i: Payload(n, n) for i, n in floats.items()}
        return {i: Payload(codes[i].sent, n) for i, n in floats.items()}


class UnpackedTernaryCodec(TernaryCodec):
    """Sends codes as float32, as simulations do: the same numbers in sixteen times the bytes."""

    def encode(
        self, gradients: Sequence[tf.Tensor], bounds: tf.Tensor, scales: tf.Tensor, key: DrawKey
    ) -> list[tf.Tensor]:
        """Returns codes as floats: one tensor, float32 [M]."""
        (words,) = super().encode(gradients, bounds, scales, key)
        return [planes.unpack(words)[: sum(map(math.prod, self.shapes))]]

    def deliver(
        self,
        exchange: Exchange,
        encoded: Sequence[Sequence[tf.Tensor]],
        scales: Sequence[tf.Tensor],
    ) -> list[tf.Tensor]:
        """Decodes the sums of whole numbers, which are exact in float32."""
        (total,) = exchange.float_sum(encoded, self.name)
        return self.decode(total, scales[0], exchange.nodes(total))

    def decode(self, words: tf.Tensor, scales: tf.Tensor, nodes: tf.Tensor) -> list[tf.Tensor]:
        """See base class; `words` are floats."""
        units = tf.unstack(ternary.mean_scale(scales, nodes), num=len(self.shapes))
        sums = tf.split(words, [math.prod(shape) for shape in self.shapes])
        each = zip(units, sums, self.shapes, strict=True)
        return [tf.reshape(unit * total, shape) for unit, total, shape in each]

    def payload(self, nodes: int, local_nodes: int | None) -> dict[int, Payload]:
        """See base class."""
        del nodes, local_nodes
        return {i: Payload(n + SCALE_BYTES, n + SCALE_BYTES) for i, n in _floats(self).items()}


def _floats(codec: TernaryCodec) -> dict[int, float]:
    """Returns the bytes of each variable as float32, by its index in the layout."""
    pairs = zip(codec.variables, codec.shapes, strict=True)
    return {i: _FLOAT_BYTES * math.prod(shape) for i, shape in pairs}
