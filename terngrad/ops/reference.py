"""The codec's arithmetic in plain TensorFlow ops: runs on every device and defines the results."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

from terngrad import planes, ternary
from terngrad.draws import DrawKey, draws_for
from terngrad.ops.gradient_kernels import GradientKernels
from terngrad.ops.packing import Packing, ReferencePacking
from terngrad.parts import Parts
from terngrad.ternary import ENCODERS, Stats


class ReferenceKernels(GradientKernels):
    """Combines the functions of `ternary`, `draws` and `planes`."""

    title = "the reference ops (TensorFlow)"
    family = "reference"

    def __init__(self, packing: Packing | None = None, on_gpu: bool = False) -> None:
        """Uses the `packing`; None = the reference, too."""
        self.packing = packing or ReferencePacking()
        self.on_gpu = on_gpu

    def stats(self, gradients: Sequence[tf.Tensor], parts: Sequence[Parts] = ()) -> Stats:
        """See base class."""
        pairs = zip(gradients, parts or [Parts()] * len(gradients), strict=True)
        each = [ternary.stats_of_parts(gradient, own) for gradient, own in pairs]
        return Stats(*(tf.concat(field, 0) for field in zip(*each, strict=True)))

    def correct(
        self,
        gradients: Sequence[tf.Tensor],
        memory: Sequence[tf.Tensor],
        parts: Sequence[Parts] = (),
    ) -> tuple[list[tf.Tensor], Stats]:
        """See base class."""
        corrected = [g + kept for g, kept in zip(gradients, memory, strict=True)]
        return corrected, self.stats(corrected, parts)

    def subtract(
        self,
        values: Sequence[tf.Tensor],
        words: tf.Tensor,
        units: tf.Tensor,
        parts: Sequence[Parts] = (),
    ) -> list[tf.Tensor]:
        """See base class."""
        shapes = [value.shape for value in values]
        sent = self.decode(words, units, tf.constant(1), shapes, parts)
        sizes = [math.prod(shape) for shape in shapes]
        finite = ternary.by_value(units != float("inf"), parts, sizes)
        return [
            tf.where(tf.reshape(known, shape) if known.shape.rank else known, value - part, 0.0)
            for value, part, known, shape in zip(values, sent, finite, shapes, strict=True)
        ]

    def encode(
        self,
        gradients: Sequence[tf.Tensor],
        variables: Sequence[int],
        bounds: tf.Tensor,
        scales: tf.Tensor,
        key: DrawKey,
        encoder: str = "ternary",
        parts: Sequence[Parts] = (),
    ) -> tf.Tensor:
        """See base class."""
        chosen, codes = ENCODERS[encoder], []
        sizes = [math.prod(gradient.shape) for gradient in gradients]
        by_value = (ternary.by_value(each, parts, sizes) for each in (bounds, scales))
        for gradient, variable, *own in zip(gradients, variables, *by_value, strict=True):
            values = tf.reshape(gradient, [-1])
            random = draws_for(key, variable, values)
            codes.append(chosen.encode(values, *own, random))
        return planes.pack_integers(tf.concat(codes, 0), planes.plane_count(chosen.max_code))

    def sum(self, words: Sequence[tf.Tensor], count: int) -> tf.Tensor:
        """See base class."""
        return planes.add_all(words, count)

    def decode(
        self,
        words: tf.Tensor,
        units: tf.Tensor,
        nodes: tf.Tensor,
        shapes: Sequence[Sequence[int]],
        parts: Sequence[Parts] = (),
    ) -> list[tf.Tensor]:
        """See base class."""
        sizes = [math.prod(shape) for shape in shapes]
        sums = tf.split(planes.unpack(words)[: sum(sizes)], sizes)
        each_unit = ternary.by_value(ternary.mean_scale(units, nodes), parts, sizes)
        each = zip(each_unit, sums, shapes, strict=True)
        return [tf.reshape(unit * total, shape) for unit, total, shape in each]
