"""Codes drawn at random: one for each value, and one scale for each part of a variable."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from terngrad.codecs.integer_codec import IntegerCodec
from terngrad.draws import DrawKey
from terngrad.layout import MAX_CODES

_NAMES = {max_code: name for name, max_code in MAX_CODES.items()}


class RandomRoundingCodec(IntegerCodec):
    """Codes up to `max_code`, drawn so that their mean is the clipped gradient.

    A subclass sets `max_code`, one of `layout.MAX_CODES`, and the encoder of that name.
    """

    scales_parts = True

    def encode(
        self, gradients: Sequence[tf.Tensor], bounds: tf.Tensor, scales: tf.Tensor, key: DrawKey
    ) -> list[tf.Tensor]:
        """Returns packed codes: one tensor, uint32 [M / 32, k]."""
        inputs = gradients, self.variables, bounds, scales, key
        return [self.kernels.encode(*inputs, _NAMES[self.max_code], self.parts)]


class TernaryCodec(RandomRoundingCodec):
    """Codes -1, 0, +1 (paper, section 3.1)."""

    max_code, encoder = 1, "ternary"


class Codec5Level(RandomRoundingCodec):
    """Codes up to 2 in magnitude."""

    max_code, encoder = 2, "5-level"


class Codec7Level(RandomRoundingCodec):
    """Codes up to 3 in magnitude."""

    max_code, encoder = 3, "7-level"


class Codec15Level(RandomRoundingCodec):
    """Codes up to 7 in magnitude."""

    max_code, encoder = 7, "15-level"


class Codec255Level(RandomRoundingCodec):
    """Codes up to 127 in magnitude."""

    max_code, encoder = 127, "255-level"
