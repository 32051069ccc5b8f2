"""The base of all codecs with small integers as codes, whose sums over nodes are exact."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from terngrad import planes, ternary
from terngrad.codecs.codec import Codec, Delivered, Measured
from terngrad.exchange.exchange import Exchange, LocalBucket, Payload
from terngrad.layout import EXACT, Layout
from terngrad.ops.gradient_kernels import EncodeInputs, GradientKernels
from terngrad.ternary import ENCODERS

SCALE_BYTES = 4
_CPU = "/CPU:0"


class IntegerCodec(Codec):
    """Codes one bucket of a layout; codes are given to the exchange in bit planes.

    A subclass sets `max_code` and implements `encode`, which returns one tensor, uint32
    [M / 32, k]: the codes of the bucket's M elements in k = `planes.plane_count(max_code)` planes
    (see `planes.pack_integers`). A code c stands for c * scale / max_code, with the scale of its
    part of the variable. If these are the codes of `kernels.encode`, it also sets `encoder`. If its
    `encode` returns something else than planes, it overrides all that reads codes: `deliver`,
    `decode`, `payload` and `share_of_zeros`.

    Each bucket is measured, exchanged and decoded without waiting for the others. The exchange of
    the first bucket thus overlaps with the backward pass of the rest.

    Attributes:
      shapes: shapes of the bucket's v variables.
      parts: which of their values share a scale; the bucket has p parts.
      kernels: the arithmetic that all codecs share.
    """

    sums_codes = True

    def __init__(self, layout: Layout, bucket: int, kernels: GradientKernels) -> None:
        """Codes the layout's bucket of this index with the layout's policy.

        Raises:
          ValueError: the class does not set `max_code`, or sets an encoder of other codes.
        """
        name = type(self).__name__
        if self.max_code < 1:
            raise ValueError(f"{name}.max_code is {self.max_code}; allowed is 1 or more.")
        largest = {each: encoder.max_code for each, encoder in ENCODERS.items()}
        if self.encoder and largest.get(self.encoder) != self.max_code:
            raise ValueError(
                f"{name}.encoder is {self.encoder!r}, max_code is {self.max_code}; allowed are "
                + ", ".join(f"{each!r} with {code}" for each, code in largest.items())
            )
        self._bucket = layout.buckets[bucket]
        self.variables = tuple(s.variable for s in self._bucket.segments)
        self.name = f"{layout.fingerprint().hex()}/bucket {bucket}"
        self.shapes = [s.shape for s in self._bucket.segments]
        self.kernels = kernels
        self.parts = tuple(s.parts for s in self._bucket.segments)
        self._sizes = [s.size for s in self._bucket.segments]
        self._clip_factor = layout.policy.clip_factor
        self._is_centred = layout.policy.scale_by == "variable"
        self.antithetic = layout.policy.draws == "antithetic"
        self.sum_codec = "" if layout.policy.sum_codec == EXACT else layout.policy.sum_codec

    @property
    def scale_count(self) -> int:
        """See base class."""
        return sum(parts.count for parts in self.parts)

    @property
    def counts(self) -> tf.Tensor:
        """The number of values in each part: float32 [p]."""
        each = zip(self.parts, self._sizes, strict=True)
        return tf.constant([n for parts, size in each for n in parts.sizes(size)], tf.float32)

    def measure(self, gradients: Sequence[tf.Tensor]) -> Measured:
        """Clips as `ternary.clip_bound` says; the scale is the largest magnitude left."""
        stats = self.kernels.stats(gradients, self.parts)
        bounds = ternary.clip_bound(
            stats, self.counts, self._clip_factor, is_centred=self._is_centred
        )
        return Measured(bounds, ternary.local_scale(stats, bounds))

    def deliver(
        self,
        exchange: Exchange,
        nodes: Sequence[EncodeInputs],
        devices: Sequence[str],
        as_sums: bool = False,
    ) -> Delivered:
        """See base class: exact integer sums over all nodes, decoded."""
        scales = nodes[0].scales
        bucket = LocalBucket(
            self.name,
            self.max_code,
            lambda: [words for (words,) in self.encode_each(nodes, devices)],
            self.variables,
            self.shapes,
            self.units(scales),
            self.parts,
            decoded=self.sums_codes and not as_sums,
            encoder=self.encoder,
            nodes=nodes,
        )
        codes, means = exchange.sum_codes(bucket)
        if not self.sums_codes:  # a subclass decodes in a way of its own
            means = self.decode(means.words, scales, means.nodes)
        return Delivered([[words] for words in codes], means)

    def units(self, scales: tf.Tensor) -> tf.Tensor:
        """Returns the value of a code of 1: float32 [p]."""
        return ternary.unit(scales, self.max_code)

    def decode(self, words: tf.Tensor, scales: tf.Tensor, nodes: tf.Tensor) -> list[tf.Tensor]:
        """Returns the means, fl(unit / nodes) * sum, in the shapes of the variables.

        Args:
          words: sums of the codes of `nodes` nodes.
          scales: float32 [p], the scales of the codes.
          nodes: int32 scalar, not a graph constant other than 1 (see `ternary.mean_scale`).
        """
        return self.kernels.decode(words, self.units(scales), nodes, self.shapes, self.parts)

    def by_value(self, numbers: tf.Tensor) -> list[tf.Tensor]:
        """Returns, for each variable, the number of each of its values.

        Args:
          numbers: float32 [p], one for each part, such as bounds, scales or units.

        Returns:
          Tensors of the variables' shapes; a scalar for a variable of one part.
        """
        found = zip(ternary.by_value(numbers, self.parts, self._sizes), self.shapes, strict=True)
        return [tf.reshape(each, shape) if each.shape.rank else each for each, shape in found]

    def sent(self, encoded: Sequence[tf.Tensor], scales: tf.Tensor) -> list[tf.Tensor]:
        """Returns the values of one node's codes, in the shapes of the variables."""
        return self.decode(encoded[0], scales, tf.constant(1))

    def share_of_zeros(self, encoded: Sequence[tf.Tensor]) -> dict[int, tf.Tensor]:
        """See base class."""
        with tf.device(_CPU):
            zeros = self._sizes - planes.count_nonzero(encoded[0], self._sizes)
            shares = tf.unstack(tf.cast(zeros / self._sizes, tf.float32))
        return dict(zip(self.variables, shares, strict=True))

    def payload(self, nodes: int, local_nodes: int | None) -> dict[int, Payload]:
        """See base class: codes and sums, and a scale of 4 bytes for each part of a variable.

        The zeros that pad a bucket count in proportion to the variables' sizes.
        """
        up = planes.plane_count((local_nodes or 1) * self.max_code)
        down = planes.plane_count(nodes * self.max_code)
        padding = planes.padded(self._bucket.size) / max(self._bucket.size, 1)
        found = {}
        for variable, size, parts in zip(self.variables, self._sizes, self.parts, strict=True):
            octets, scales = size * padding / 8, SCALE_BYTES * parts.count
            found[variable] = Payload(octets * up + scales, octets * down + scales)
        return found
