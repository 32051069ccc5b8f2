"""The codec's arithmetic in native ops; their contracts: terngrad/cc/ops/ternary_ops.cc."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from terngrad.draws import DrawKey
from terngrad.ops import library
from terngrad.ops.gradient_kernels import Averages, EncodeInputs, GradientKernels, Sums, Update
from terngrad.ops.packing import NativePacking
from terngrad.parts import Parts
from terngrad.ternary import Stats


class NativeKernels(GradientKernels):
    """Native ops; these run on the CPU, on the threads of TensorFlow's pool.

    Attributes:
      path: instruction set, one of `PATHS`.
    """

    family = "native"
    updates = True

    def __init__(self, path: str = "") -> None:
        """Loads the ops.

        Args:
          path: instruction set, one of `library.PATHS`; "" = the fastest that this processor has.

        Raises:
          library.UnavailableError: see there.
          ValueError: an unknown path, or one that this processor does not have.
        """
        self._ops = library.load()
        self.path = library.choose_path(library.load_functions(), path)
        self.packing = NativePacking(self.path)
        self.title = f"native kernels ({self.path})"

    def stats(self, gradients: Sequence[tf.Tensor], parts: Sequence[Parts] = ()) -> Stats:
        """See base class."""
        found = self._ops.terngrad_stats(
            gradients=gradients, parts=parts_attribute(parts), path=self.path
        )
        return Stats(*found)

    def correct(
        self,
        gradients: Sequence[tf.Tensor],
        memory: Sequence[tf.Tensor],
        parts: Sequence[Parts] = (),
    ) -> tuple[list[tf.Tensor], Stats]:
        """See base class; in one pass over memory."""
        corrected, *stats = self._ops.terngrad_correct(
            gradients=gradients, memory=memory, parts=parts_attribute(parts), path=self.path
        )
        return corrected, Stats(*stats)

    def subtract(
        self,
        values: Sequence[tf.Tensor],
        words: tf.Tensor,
        units: tf.Tensor,
        parts: Sequence[Parts] = (),
    ) -> list[tf.Tensor]:
        """See base class; in one pass over memory."""
        return self._ops.terngrad_subtract(
            values=values, words=words, units=units, parts=parts_attribute(parts), path=self.path
        )

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
        inputs = EncodeInputs(gradients, bounds, scales, key)
        return self._ops.terngrad_encode(
            **encode_arguments(inputs, variables, encoder, parts), path=self.path
        )

    def sum(self, words: Sequence[tf.Tensor], count: int) -> tf.Tensor:
        """See base class."""
        return self._ops.terngrad_sum(words=words, planes=count, path=self.path)

    def decode(
        self,
        words: tf.Tensor,
        units: tf.Tensor,
        nodes: tf.Tensor,
        shapes: Sequence[Sequence[int]],
        parts: Sequence[Parts] = (),
    ) -> list[tf.Tensor]:
        """See base class."""
        return self._ops.terngrad_decode(
            words=words, units=units, nodes=nodes, shapes=list(shapes), path=self.path,
            n=len(shapes), parts=parts_attribute(parts),
        )  # fmt: skip

    def apply_update(
        self,
        sums: Sums,
        weights: Sequence[tf.Variable],
        slots: Sequence[Sequence[tf.Variable]],
        update: Update,
        averages: Averages | None = None,
    ) -> None:
        """See base class; in one pass over memory, without means."""
        shadows, gain = averages or ([], 0.0)
        self._ops.terngrad_update(
            words=sums.words, units=sums.units, nodes=sums.nodes, rate=update.rate, gain=gain,
            weights=[v.handle for v in weights],
            slots=[v.handle for variables in slots for v in variables],
            averages=[v.handle for v in shadows], parts=parts_attribute(sums.parts),
            rule=update.rule, momentum=update.momentum, mean_share=update.mean_share,
            square_share=update.square_share, epsilon=update.epsilon, path=self.path,
        )  # fmt: skip


def encode_arguments(
    inputs: EncodeInputs, variables: Sequence[int], encoder: str, parts: Sequence[Parts] = ()
) -> dict[str, Any]:
    """Returns the arguments that all ops that encode have; see `GradientKernels.encode`."""
    gradients, bounds, scales, key = inputs
    return {
        "gradients": gradients,
        "bounds": bounds,
        "scales": scales,
        "seed": key.seed,
        "step": tf.cast(key.step, tf.int64),
        "node": tf.cast(key.node, tf.int32),
        "variables": list(variables),
        "encoder": encoder,
        "antithetic": key.antithetic,
        "parts": parts_attribute(parts),
    }


def parts_attribute(parts: Sequence[Parts]) -> list[int]:
    """Returns the attribute `parts` of all ops that know parts."""
    return [n for each in parts for n in (each.block, each.count, each.first)]
