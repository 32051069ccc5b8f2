"""A codec with several levels and a memory, for the tests that all codecs share."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from terngrad import planes
from terngrad.codecs.codec import NodeMemory
from terngrad.codecs.integer_codec import IntegerCodec
from terngrad.draws import DrawKey


class ResidualCodec(IntegerCodec):
    """Rounds to 7 levels and keeps the error of rounding and clipping."""

    max_code = 3

    def init(self) -> NodeMemory:
        """See base class."""
        return [tf.zeros(shape) for shape in self.shapes]

    def correct(self, gradients: Sequence[tf.Tensor], memory: NodeMemory) -> list[tf.Tensor]:
        """Adds the kept errors to the gradients."""
        return [g + m for g, m in zip(gradients, memory, strict=True)]

    def encode(
        self, gradients: Sequence[tf.Tensor], bounds: tf.Tensor, scales: tf.Tensor, key: DrawKey
    ) -> list[tf.Tensor]:
        """See base class."""
        del bounds, key
        units = self.by_value(self.units(scales))
        levels = [tf.math.divide_no_nan(g, unit) for g, unit in zip(gradients, units, strict=True)]
        codes = [tf.clip_by_value(tf.round(tf.reshape(v, [-1])), -3.0, 3.0) for v in levels]
        return [planes.pack_integers(tf.concat(codes, 0), planes.plane_count(self.max_code))]

    def update(
        self, corrected: Sequence[tf.Tensor], encoded: Sequence[tf.Tensor], scales: tf.Tensor
    ) -> NodeMemory:
        """Returns the error of the codes."""
        sent = self.sent(encoded, scales)
        return [c - s for c, s in zip(corrected, sent, strict=True)]
