"""The ternary codec: one code a value, one scale a variable."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import tensorflow as tf

from terngrad import ternary
from terngrad.codecs import planes
from terngrad.codecs.codec import Codec, Measured, Payload
from terngrad.draws import DrawKey
from terngrad.exchange.exchange import Exchange
from terngrad.layout import Bucket, Layout
from terngrad.ops.kernels import Kernels
from terngrad.ops.reference import scaled_sums, ternarize_all

_SCALE_BYTES = 4


class TernaryCodec(Codec):
    """Codes the buckets of a layout; codes travel packed in bit planes."""

    def __init__(self, layout: Layout, kernels: Kernels) -> None:
        """Codes the layout's coded variables with the layout's policy."""
        self.variables = layout.coded
        self._kernels = kernels
        self._policy = layout.policy
        self._buckets = layout.buckets
        self._segments = [s for bucket in layout.buckets for s in bucket.segments]
        self._counts = tf.constant([s.size for s in self._segments], tf.float32)

    def measure(self, gradients: Sequence[tf.Tensor]) -> Measured:
        """See base class."""
        stats = self._kernels.stats(gradients)
        bounds = ternary.clip_bound(stats, self._counts, self._policy.clip_factor)
        return Measured(bounds, ternary.local_scale(stats, bounds))

    def encode(
        self, gradients: Sequence[tf.Tensor], bounds: tf.Tensor, scales: tf.Tensor, key: DrawKey
    ) -> list[tf.Tensor]:
        """Packed codes of each bucket: uint32 [M / 32, 2]."""
        each = zip(
            self._buckets,
            self._by_bucket(gradients),
            self._by_bucket(bounds),
            self._by_bucket(scales),
            strict=True,
        )
        return [self._write(bucket, *values, key) for bucket, *values in each]

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
        each = zip(self._buckets, sums, self._by_bucket(scales), strict=True)
        return [
            mean
            for bucket, words, own_scales in each
            for mean in self._read(bucket, words, own_scales, nodes)
        ]

    def share_of_zeros(self, encoded: Sequence[tf.Tensor]) -> dict[int, tf.Tensor]:
        """See base class."""
        codes = self.decode(encoded, tf.ones([len(self._segments)]), tf.constant(1))
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

    def _by_bucket(self, values: Sequence[tf.Tensor] | tf.Tensor) -> list:
        """Cuts what there is one of a variable: a list, or a tensor [v]."""
        ends = list(itertools.accumulate(len(bucket.segments) for bucket in self._buckets))
        return [values[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def _write(self, bucket: Bucket, gradients, bounds, scales, key: DrawKey) -> tf.Tensor:
        return self._kernels.encode(gradients, _variables(bucket), bounds, scales, key)

    def _read(self, bucket: Bucket, words, scales, nodes) -> list[tf.Tensor]:
        return self._kernels.decode(words, scales, nodes, _shapes(bucket))

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

    def _write(self, bucket: Bucket, gradients, bounds, scales, key: DrawKey) -> tf.Tensor:
        codes = ternarize_all(gradients, _variables(bucket), bounds, scales, key)
        signed = [tf.where(c.negative, -1.0, tf.cast(c.nonzero, tf.float32)) for c in codes]
        return tf.concat(signed, 0)

    def _read(self, bucket: Bucket, words, scales, nodes) -> list[tf.Tensor]:
        return scaled_sums(words, scales, nodes, _shapes(bucket))

    def _sum(self, exchange: Exchange, codes: Sequence[tf.Tensor]) -> tf.Tensor:
        return exchange.float_sum(codes)  # whole numbers: exact in float32


def _variables(bucket: Bucket) -> list[int]:
    return [segment.variable for segment in bucket.segments]


def _shapes(bucket: Bucket) -> list[tuple[int, ...]]:
    return [segment.shape for segment in bucket.segments]
