"""The ternary codec: one code for each value, one scale for each variable."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from terngrad.codecs.codec import Codec, Measured
from terngrad.codecs.integer_codec import SCALE_BYTES, IntegerCodec
from terngrad.draws import DrawKey
from terngrad.exchange.exchange import Exchange, Payload
from terngrad.layout import Layout
from terngrad.ops.kernels import EncodeInputs, Kernels
from terngrad.ops.reference import scaled_sums, ternarize_all


def ternary_codec(layout: Layout, bucket: int, kernels: Kernels) -> Codec:
    """Returns the ternary codec of a bucket, in the form that the layout's policy names."""
    if not layout.policy.scaler_sharing:
        return OwnScaleTernaryCodec(layout, bucket, kernels)
    made = TernaryCodec if layout.policy.use_encoding else UnpackedTernaryCodec
    return made(layout, bucket, kernels)


class TernaryCodec(IntegerCodec):
    """Codes -1, 0, +1, drawn so that their mean is the clipped gradient (paper, section 3.1)."""

    max_code = 1

    def encode(
        self, gradients: Sequence[tf.Tensor], bounds: tf.Tensor, scales: tf.Tensor, key: DrawKey
    ) -> list[tf.Tensor]:
        """Returns packed codes: one tensor, uint32 [M / 32, 2]."""
        return [self.kernels.encode(gradients, self.variables, bounds, scales, key)]

    def _deliver_early(
        self, exchange: Exchange, nodes: Sequence[EncodeInputs]
    ) -> tuple[list[list[tf.Tensor]], list[tf.Tensor]] | None:
        """See base class; offered for the codes of an only node."""
        if not self._may_encode_in_parts(nodes):
            return None
        found = exchange.mean_while_encoding(nodes[0], self.variables, self.name, self.shapes)
        return ([[found.codes]], found.means) if found else None

    def _sum_early(
        self, exchange: Exchange, nodes: Sequence[EncodeInputs]
    ) -> tuple[list[list[tf.Tensor]], tf.Tensor] | None:
        """See base class and `_deliver_early`."""
        if not self._may_encode_in_parts(nodes):
            return None
        elements = sum(self._sizes)
        found = exchange.sum_while_encoding(nodes[0], self.variables, self.name, elements)
        return ([[found[0]]], found[1]) if found else None

    def _may_encode_in_parts(self, nodes: Sequence[EncodeInputs]) -> bool:
        is_own = type(self) is TernaryCodec  # a subclass may encode in another way
        return is_own and len(nodes) == 1 and self.kernels.family == "native"


class OwnScaleTernaryCodec(TernaryCodec):
    """Each node scales by its own maximum, for study: sums of codes have no meaning then."""

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
        floats = {i: 4.0 * size for i, size in zip(self.variables, self._sizes, strict=True)}
        if local_nodes is not None:
            return {i: Payload(n, n) for i, n in floats.items()}
        codes = super().payload(nodes, local_nodes)
        return {i: Payload(codes[i].sent, n) for i, n in floats.items()}


class UnpackedTernaryCodec(TernaryCodec):
    """Sends codes as float32, as simulations do: the same numbers in sixteen times the bytes."""

    def encode(
        self, gradients: Sequence[tf.Tensor], bounds: tf.Tensor, scales: tf.Tensor, key: DrawKey
    ) -> list[tf.Tensor]:
        """Returns codes as floats: one tensor, float32 [M]."""
        codes = ternarize_all(gradients, self.variables, bounds, scales, key)
        signed = [tf.where(c.negative, -1.0, tf.cast(c.nonzero, tf.float32)) for c in codes]
        return [tf.concat(signed, 0)]

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
        return scaled_sums(words, scales, nodes, self.shapes)

    def payload(self, nodes: int, local_nodes: int | None) -> dict[int, Payload]:
        """See base class."""
        del nodes, local_nodes
        octets = [4.0 * size + SCALE_BYTES for size in self._sizes]
        return {i: Payload(n, n) for i, n in zip(self.variables, octets, strict=True)}
