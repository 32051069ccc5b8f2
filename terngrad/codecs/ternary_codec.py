"""The ternary codec: one code for each value, one scale for each variable."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from terngrad.codecs.integer_codec import IntegerCodec
from terngrad.draws import DrawKey


class TernaryCodec(IntegerCodec):
    """Codes -1, 0, +1, drawn so that their mean is the clipped gradient (paper, section 3.1)."""

    max_code = 1
    encoder = "ternary"

    def encode(
        self, gradients: Sequence[tf.Tensor], bounds: tf.Tensor, scales: tf.Tensor, key: DrawKey
    ) -> list[tf.Tensor]:
        """Returns packed codes: one tensor, uint32 [M / 32, 2]."""
        return [self.kernels.encode(gradients, self.variables, bounds, scales, key, "ternary")]
