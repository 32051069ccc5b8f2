"""The ternary codec: one code a value, one scale a variable."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from terngrad import planes, ternary
from terngrad.codecs.codec import Codec, Measured, Payload
from terngrad.draws import DrawKey
from terngrad.exchange.exchange import Exchange
from terngrad.layout import Layout
from terngrad.ops.kernels import Kernels
from terngrad.ops.reference import scaled_sums, ternarize_all

_SCALE_BYTES = 4


class TernaryCodec(Codec):
    """Codes one bucket of a layout; codes travel packed in bit planes.

    A bucket's gradients are measured, exchanged and decoded without waiting for another's, so that
    the exchange of the first overlaps with the backward pass of the rest.
    """

    def __init__(self, layout: Layout, bucket: int, kernels: Kernels) -> None:
        """Codes the layout's bucket of this index with the layout's policy."""
        self._bucket = layout.buckets[bucket]
        self.variables = tuple(s.variable for s in self._bucket.segments)
        self.name = f"{layout.fingerprint().hex()}/{bucket}"
        self._shapes = [s.shape for s in self._bucket.segments]
        self._sizes = [s.size for s in self._bucket.segments]
        self._clip_factor = layout.policy.clip_factor
        self._kernels = kernels

    def measure(self, gradients: Sequence[tf.Tensor]) -> Measured:
        """See base class."""
        stats = self._kernels.stats(gradients)
        counts = tf.constant(self._sizes, tf.float32)
        bounds = ternary.clip_bound(stats, counts, self._clip_factor)
        return Measured(bounds, ternary.local_scale(stats, bounds))

    def encode(
        self, gradients: Sequence[tf.Tensor], bounds: tf.Tensor, scales: tf.Tensor, key: DrawKey
    ) -> list[tf.Tensor]:
        """Packed codes: one tensor, uint32 [M / 32, 2]."""
        return [self._kernels.encode(gradients, self.variables, bounds, scales, key)]

    def deliver(
        self,
        exchange: Exchange,
        encoded: Sequence[Sequence[tf.Tensor]],
        scales: Sequence[tf.Tensor],
    ) -> list[tf.Tensor]:
        """Decodes the exact integer sums over all nodes."""
        total = exchange.sum([words for (words,) in encoded], self.name)
        return self.decode(total, scales[0], exchange.nodes(total))

    def decode(self, words: tf.Tensor, scales: tf.Tensor, nodes: tf.Tensor) -> list[tf.Tensor]:
        """Mean = fl(scale / nodes) * sum, in the shapes of the variables.

        Args:
          words: sums of the codes of `nodes` nodes.
          scales: float32 [v] that the codes were drawn with.
          nodes: int32 scalar, not a graph constant (see `ternary.mean_scale`).
        """
        return self._kernels.decode(words, scales, nodes, self._shapes)

    def share_of_zeros(self, encoded: Sequence[tf.Tensor]) -> dict[int, tf.Tensor]:
        """See base class."""
        codes = self.decode(encoded[0], tf.ones([len(self._sizes)]), tf.constant(1))
        shares = [tf.reduce_mean(tf.cast(c == 0.0, tf.float32)) for c in codes]
        return dict(zip(self.variables, shares, strict=True))

    def payload(self, nodes: int, local_nodes: int | None = None) -> dict[int, Payload]:
        """The local sums' planes and four bytes a variable up; the sums' and the scale down.

        The few zeros that pad a bucket are shared out by size.
        """
        up, down = planes.plane_count(local_nodes or 1), planes.plane_count(nodes)
        padding = planes.padded(self._bucket.size) / self._bucket.size
        octets = [size * padding / 8 for size in self._sizes]
        each = [Payload(n * up + _SCALE_BYTES, n * down + _SCALE_BYTES) for n in octets]
        return dict(zip(self.variables, each, strict=True))


class OwnScaleTernaryCodec(TernaryCodec):
    """Each node scales by its own maximum, for study: without sharing, sums are no integers."""

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
        """Decodes each node's codes alone, then forms the mean of floats."""
        nodes = exchange.nodes(scales[0])
        one = nodes // nodes
        pairs = zip(encoded, scales, strict=True)
        decoded = [self.decode(words, scale, one) for (words,), scale in pairs]
        return exchange.mean(decoded, self.name)

    def payload(self, nodes: int, local_nodes: int | None = None) -> dict[int, Payload]:
        """Codes up and floats down; a process hands in floats, as `deliver` decodes first."""
        floats = {i: 4.0 * size for i, size in zip(self.variables, self._sizes, strict=True)}
        if local_nodes is not None:
            return {i: Payload(n, n) for i, n in floats.items()}
        codes = super().payload(nodes)
        return {i: Payload(codes[i].sent, n) for i, n in floats.items()}


class UnpackedTernaryCodec(TernaryCodec):
    """Keeps codes as float32, as simulations do: the same numbers, sixteen times the bytes."""

    def encode(
        self, gradients: Sequence[tf.Tensor], bounds: tf.Tensor, scales: tf.Tensor, key: DrawKey
    ) -> list[tf.Tensor]:
        """Codes as they are: one tensor, float32 [M]."""
        codes = ternarize_all(gradients, self.variables, bounds, scales, key)
        signed = [tf.where(c.negative, -1.0, tf.cast(c.nonzero, tf.float32)) for c in codes]
        return [tf.concat(signed, 0)]

    def deliver(
        self,
        exchange: Exchange,
        encoded: Sequence[Sequence[tf.Tensor]],
        scales: Sequence[tf.Tensor],
    ) -> list[tf.Tensor]:
        """Adds whole numbers, which is exact in float32."""
        (total,) = exchange.float_sum(encoded, self.name)
        return self.decode(total, scales[0], exchange.nodes(total))

    def decode(self, words: tf.Tensor, scales: tf.Tensor, nodes: tf.Tensor) -> list[tf.Tensor]:
        """See base class; `words` are floats."""
        return scaled_sums(words, scales, nodes, self._shapes)

    def payload(self, nodes: int, local_nodes: int | None = None) -> dict[int, Payload]:
        """See base class."""
        del nodes, local_nodes
        octets = [4.0 * size + _SCALE_BYTES for size in self._sizes]
        return {i: Payload(n, n) for i, n in zip(self.variables, octets, strict=True)}
