"""Codecs that round to the nearest level and keep the rounding error for the next step."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from terngrad import ternary
from terngrad.codecs.codec import Measured, NodeMemory
from terngrad.codecs.integer_codec import IntegerCodec
from terngrad.draws import DrawKey
from terngrad.layout import FEEDBACK_CODES, WHY_FEEDBACK_NEEDS_ALL, Layout
from terngrad.ops.gradient_kernels import GradientKernels

# The value of a code of 1, in root mean squares: rounding Gaussian values to multiples of it, up to
# the largest code, has the least mean squared error. docs/clip_factor_test.py computes them.
STEPS = {1: 1.224, 2: 0.843}
_NAMES = {max_code: name for name, max_code in FEEDBACK_CODES.items()}


class FeedbackCodec(IntegerCodec):
    """Error feedback: encodes gradient + memory; the new memory is the rounding error.

    A node's scale is that of `ternary.nearest_scale`. Nothing is drawn.

    A subclass sets `max_code`, one of `layout.FEEDBACK_CODES`, and the encoder of that name.
    """

    scales_parts = True

    def __init__(self, layout: Layout, bucket: int, kernels: GradientKernels) -> None:
        """See base class.

        Raises:
          ValueError: the policy clips.
        """
        if layout.policy.clip_factor:
            raise ValueError(
                f"clip_factor is {layout.policy.clip_factor}; allowed is 0 with "
                f"{layout.policy.codec}: {WHY_FEEDBACK_NEEDS_ALL}"
            )
        super().__init__(layout, bucket, kernels)

    def init(self) -> NodeMemory:
        """See base class."""
        return [tf.zeros(shape) for shape in self.shapes]

    def correct(self, gradients: Sequence[tf.Tensor], memory: NodeMemory) -> list[tf.Tensor]:
        """Returns gradients + memory."""
        return [gradient + kept for gradient, kept in zip(gradients, memory, strict=True)]

    def measure(self, gradients: Sequence[tf.Tensor]) -> Measured:
        """See base class."""
        return self._measured(self.kernels.stats(gradients, self.parts))

    def correct_and_measure(
        self, gradients: Sequence[tf.Tensor], memory: NodeMemory
    ) -> tuple[list[tf.Tensor], Measured]:
        """See base class; one pass over memory."""
        corrected, stats = self.kernels.correct(gradients, memory, self.parts)
        return corrected, self._measured(stats)

    def encode(
        self, gradients: Sequence[tf.Tensor], bounds: tf.Tensor, scales: tf.Tensor, key: DrawKey
    ) -> list[tf.Tensor]:
        """Returns packed codes: one tensor, uint32 [M / 32, k]."""
        inputs = gradients, self.variables, bounds, scales, key
        return [self.kernels.encode(*inputs, _NAMES[self.max_code], self.parts)]

    def update(
        self, corrected: Sequence[tf.Tensor], encoded: Sequence[tf.Tensor], scales: tf.Tensor
    ) -> NodeMemory:
        """Returns corrected - sent; zeros where a scale is infinite, as a gradient is then."""
        return self.kernels.subtract(corrected, encoded[0], self.units(scales), self.parts)

    def _measured(self, stats: ternary.Stats) -> Measured:
        levels = self.max_code * STEPS[self.max_code]
        scales = ternary.nearest_scale(stats, self.counts, levels)
        return Measured(tf.fill(tf.shape(scales), float("inf")), scales)


class TernaryFeedbackCodec(FeedbackCodec):
    """Codes -1, 0, +1."""

    max_code, encoder = 1, "ternary-feedback"


class FiveLevelFeedbackCodec(FeedbackCodec):
    """Codes up to 2 in magnitude."""

    max_code, encoder = 2, "5-level-feedback"
