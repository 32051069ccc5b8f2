"""The ternary codec: one code for each value, one scale for each variable."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from terngrad.codecs.integer_codec import IntegerCodec
from terngrad.draws import DrawKey
from terngrad.exchange.exchange import Exchange
from terngrad.ops.kernels import EncodeInputs


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
