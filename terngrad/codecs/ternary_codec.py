"""The ternary codec: one code a value, one scale a variable."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from terngrad import ternary
from terngrad.codecs import planes
from terngrad.codecs.codec import Codec, Measured, Payload
from terngrad.draws import DrawKey, draws
from terngrad.exchange.exchange import Exchange
from terngrad.layout import Bucket, Layout

_SCALE_BYTES = 4


class TernaryCodec(Codec):
    """Codes the buckets of a layout; codes travel packed in bit planes."""

    def __init__(self, layout: Layout) -> None:
        """Codes the layout's coded variables with the layout's policy."""
        self.variables = layout.coded
        self._policy = layout.policy
        self._buckets = layout.buckets
        self._segments = [s for bucket in layout.buckets for s in bucket.segments]

    def measure(self, gradients: Sequence[tf.Tensor]) -> Measured:
        """See base class."""
        bounds, scales = [], []
        for gradient, segment in zip(gradients, self._segments, strict=True):
            stats = ternary.stats(gradient)
            bounds.append(ternary.clip_bound(stats, segment.size, self._policy.clip_factor))
            scales.append(ternary.local_scale(stats, bounds[-1]))
        return Measured(tf.stack(bounds), tf.stack(scales))

    def encode(
        self, gradients: Sequence[tf.Tensor], bounds: tf.Tensor, scales: tf.Tensor, key: DrawKey
    ) -> list[tf.Tensor]:
        """Packed codes of each bucket: uint32 [M / 32, 2]."""
        codes = self._ternarize(gradients, bounds, scales, key)
        return [self._write(bucket, codes) for bucket in self._buckets]

    def deliver(
        self,
        exchange: Exchange,
        encoded: Sequence[Sequence[tf.Tensor]],
        scales: Sequence[tf.Tensor],
    ) -> list[tf.Tensor]:
        """Decodes the exact integer sums over all nodes."""
        sums = [self._sum(exchange, bucket) for bucket in zip(*encoded, strict=True)]
        return self.decode(sums, scales[0], exchange.nodes())

    def decode(
        self, sums: Sequence[tf.Tensor], scales: tf.Tensor, nodes: tf.Tensor
    ) -> list[tf.Tensor]:
        """Mean = fl(scale / nodes) * sum, in the shapes of the variables.

        Args:
          sums: of the codes of `nodes` nodes, one tensor a bucket.
          scales: float32 [v] that the codes were drawn with.
          nodes: int32 scalar, not a graph constant (see `ternary.mean_scale`).
        """
        units = tf.unstack(ternary.mean_scale(scales, nodes), num=len(self._segments))
        totals = self._by_variable(sums)
        return [
            tf.reshape(unit * total, segment.shape)
            for unit, total, segment in zip(units, totals, self._segments, strict=True)
        ]

    def share_of_zeros(self, encoded: Sequence[tf.Tensor]) -> dict[int, tf.Tensor]:
        """See base class."""
        codes = self._by_variable(encoded)
        shares = [tf.reduce_mean(tf.cast(c == 0.0, tf.float32)) for c in codes]
        return dict(zip(self.variables, shares, strict=True))

    def payload(self, nodes: int) -> dict[int, Payload]:
        """Two bits a value and four bytes a variable up; the sums' planes and the scale down.

        The few zeros that pad a bucket are shared out by size.
        """
        up, down = planes.plane_count(1), self._bits_received(nodes)
        payloads = {}
        for bucket in self._buckets:
            padding = planes.padded(bucket.size) / bucket.size
            for s in bucket.segments:
                octets = s.size * padding / 8
                payloads[s.variable] = Payload(
                    octets * up + _SCALE_BYTES, octets * down + _SCALE_BYTES
                )
        return payloads

    def _by_variable(self, buckets: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The integers of each segment: float32 [size]."""
        values = []
        for bucket, words in zip(self._buckets, buckets, strict=True):
            values += tf.split(self._read(bucket, words), [s.size for s in bucket.segments])
        return values

    def _ternarize(self, gradients, bounds, scales, key) -> dict[int, ternary.Ternary]:
        """Codes by variable."""
        codes = {}
        for i, (segment, gradient) in enumerate(zip(self._segments, gradients, strict=True)):
            values = tf.reshape(gradient, [-1])
            random = draws(key, segment.variable, segment.size)
            codes[segment.variable] = ternary.ternarize(values, bounds[i], scales[i], random)
        return codes

    def _write(self, bucket: Bucket, codes: dict[int, ternary.Ternary]) -> tf.Tensor:
        padding = [[0, planes.padded(bucket.size) - bucket.size]]
        masks = zip(*(codes[s.variable] for s in bucket.segments), strict=True)
        return tf.stack([planes.pack(tf.pad(tf.concat(m, 0), padding)) for m in masks], axis=1)

    def _read(self, bucket: Bucket, words: tf.Tensor) -> tf.Tensor:
        return planes.unpack(words)[: bucket.size]

    def _sum(self, exchange: Exchange, codes: Sequence[tf.Tensor]) -> tf.Tensor:
        return exchange.sum(codes)

    def _bits_received(self, nodes: int) -> int:
        return planes.plane_count(nodes)


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
        one = exchange.nodes() // exchange.nodes()
        pairs = zip(encoded, scales, strict=True)
        decoded = [self.decode(codes, scale, one) for codes, scale in pairs]
        return [exchange.mean(values) for values in zip(*decoded, strict=True)]

    def _bits_received(self, nodes: int) -> int:
        del nodes
        return 32


class UnpackedTernaryCodec(TernaryCodec):
    """Keeps codes as float32, as simulations do: the same numbers, sixteen times the bytes."""

    def payload(self, nodes: int) -> dict[int, Payload]:
        """See base class."""
        del nodes
        sizes = {s.variable: 4.0 * s.size + _SCALE_BYTES for s in self._segments}
        return {i: Payload(n, n) for i, n in sizes.items()}

    def _write(self, bucket: Bucket, codes: dict[int, ternary.Ternary]) -> tf.Tensor:
        signs = [tf.where(codes[s.variable].negative, -1.0, 1.0) for s in bucket.segments]
        kept = [codes[s.variable].nonzero for s in bucket.segments]
        return tf.where(tf.concat(kept, 0), tf.concat(signs, 0), 0.0)

    def _read(self, bucket: Bucket, words: tf.Tensor) -> tf.Tensor:
        del bucket
        return words

    def _sum(self, exchange: Exchange, codes: Sequence[tf.Tensor]) -> tf.Tensor:
        return exchange.float_sum(codes)  # whole numbers: exact in float32
