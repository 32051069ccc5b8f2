"""The codec's arithmetic in plain TensorFlow ops: runs on every device and defines the results."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

from terngrad import planes, ternary
from terngrad.draws import DrawKey, draws_for
from terngrad.encoders import ENCODERS
from terngrad.ops.gradient_kernels import GradientKernels
from terngrad.ops.packing import Packing, ReferencePacking
from terngrad.ternary import Stats


class ReferenceKernels(GradientKernels):
    """Combines the functions of `ternary`, `draws` and `planes`."""

    title = "the reference ops (TensorFlow)"
    family = "reference"

    def __init__(self, packing: Packing | None = None) -> None:
        """Uses the `packing`; None = the reference, too."""
        self.packing = packing or ReferencePacking()

    def stats(self, gradients: Sequence[tf.Tensor]) -> Stats:
        """See base class."""
        each = [ternary.stats(gradient) for gradient in gradients]
        return Stats(*(tf.stack(field) for field in zip(*each, strict=True)))

    def encode(
        self,
        gradients: Sequence[tf.Tensor],
        variables: Sequence[int],
        bounds: tf.Tensor,
        scales: tf.Tensor,
        key: DrawKey,
        encoder: str = "ternary",
    ) -> tf.Tensor:
        """See base class."""
        chosen, codes = ENCODERS[encoder], []
        for i, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
            values = tf.reshape(gradient, [-1])
            random = draws_for(key, variable, values)
            codes.append(chosen.encode(values, bounds[i], scales[i], random))
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
    ) -> list[tf.Tensor]:
        """See base class."""
        sizes = [math.prod(shape) for shape in shapes]
        sums = tf.split(planes.unpack(words)[: sum(sizes)], sizes)
        each_unit = tf.unstack(ternary.mean_scale(units, nodes), num=len(shapes))
        each = zip(each_unit, sums, shapes, strict=True)
        return [tf.reshape(unit * total, shape) for unit, total, shape in each]
