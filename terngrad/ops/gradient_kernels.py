"""The contract of the arithmetic that runs where the gradients are, and the updates it can make."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Literal, NamedTuple

import tensorflow as tf

from terngrad.draws import DrawKey
from terngrad.ops.packing import Packing
from terngrad.parts import Parts
from terngrad.ternary import Stats

Rule = Literal["momentum", "keras_momentum", "nesterov", "adam", "rmsprop"]


class Update(NamedTuple):
    """How a mean gradient g changes a weight w and its slots; each operation rounds.

    - momentum: v = momentum v + g; w -= rate v
    - keras_momentum: v = momentum v - rate g; w += v
    - nesterov: v = momentum v - rate g; w += momentum v - rate g
    - adam, slots m and s: m += (g - m) mean_share; s += (g g - s) square_share;
      w -= m rate / (sqrt(s) + epsilon)
    - rmsprop, slots s and v: s += (g g - s) square_share;
      v = momentum v + g rate / sqrt(s + epsilon); w -= v

    Attributes:
      rule: its name.
      rate: learning rate, float32 scalar; for adam with the corrections of the bias.
      momentum: share of a velocity that is kept.
      mean_share: 1 - beta1, the weight of a new value in a mean. TensorFlow's kernels subtract in
        float32, Keras rounds the exact difference.
      square_share: 1 - beta2, likewise in a mean square.
      epsilon: is added to divisors.
    """

    rule: Rule
    rate: tf.Tensor
    momentum: float = 0.0
    mean_share: float = 0.0
    square_share: float = 0.0
    epsilon: float = 0.0


class Averages(NamedTuple):
    """Moving averages of weights: each becomes (average + gain weight) / (1 + gain).

    Attributes:
      shadows: the averages, in the order and shapes of the weights.
      gain: float32 scalar.
    """

    shadows: Sequence[tf.Variable]
    gain: tf.Tensor


class EncodeInputs(NamedTuple):
    """One node's gradients of a bucket, and how they become codes; see `GradientKernels.encode`."""

    gradients: Sequence[tf.Tensor]
    bounds: tf.Tensor
    scales: tf.Tensor
    key: DrawKey


class Sums(NamedTuple):
    """The mean gradients of a bucket before they are decoded; see `GradientKernels.decode`.

    Attributes:
      variables: indices of the bucket's v variables in the layout, in its order.
      words: uint32 [M / 32, k], sums of codes.
      units: float32 [p], the value of a code of 1 in each part of the variables.
      nodes: int32 scalar, number of nodes in the sums.
      parts: of each variable; () = each is one part.
    """

    variables: tuple[int, ...]
    words: tf.Tensor
    units: tf.Tensor
    nodes: tf.Tensor
    parts: tuple[Parts, ...] = ()


class GradientKernels(abc.ABC):
    """Statistics, ternary codes, their sums and means, and updates with these.

    A vector [p] has a number for each part of the v variables that it is about, in their order. The
    argument `parts` says what these are; () = each variable is one part, so p = v.

    Implementations agree bit for bit, except for the statistics' sums: those agree to 1e-6.

    Attributes:
      title: for the log.
      family: implementations of one family agree bit for bit in these sums, too; all workers need
        the same family.
      updates: whether they also update variables with sums, see `apply_update`.
      path: instruction set of native ones; "gpu" of those on GPUs; else "".
      on_gpu: whether gradients are on GPUs. Then only codes and their sums come to the CPU.
      packing: packs codes that have left the tensors.
    """

    title: str
    family: Literal["native", "reference"]
    updates: bool = False
    path: str = ""
    on_gpu: bool = False
    packing: Packing

    @property
    def compared(self) -> str:
        """A text that must be equal on all workers: otherwise copies of parameters drift apart, for
        example because only some round as GPUs do.
        """
        return f"{self.family}{' on GPUs' if self.on_gpu else ''}"

    @property
    def of_cpu(self) -> GradientKernels:
        """Kernels for tensors on the CPU: native ones beside native ones on GPUs."""
        return self

    def are_there(self, variables: Sequence[tf.Variable]) -> bool:
        """Returns whether variables are together on one device of the kind of these kernels."""
        devices = {variable.device for variable in variables}
        return len(devices) == 1 and ("GPU" in min(devices)) == self.on_gpu

    @abc.abstractmethod
    def stats(self, gradients: Sequence[tf.Tensor], parts: Sequence[Parts] = ()) -> Stats:
        """Statistics of v whole gradients of any shape, each field float32 [p]."""

    @abc.abstractmethod
    def correct(
        self,
        gradients: Sequence[tf.Tensor],
        memory: Sequence[tf.Tensor],
        parts: Sequence[Parts] = (),
    ) -> tuple[list[tf.Tensor], Stats]:
        """The sums gradient + memory of v variables, and their statistics."""

    @abc.abstractmethod
    def subtract(
        self,
        values: Sequence[tf.Tensor],
        words: tf.Tensor,
        units: tf.Tensor,
        parts: Sequence[Parts] = (),
    ) -> list[tf.Tensor]:
        """Values minus what their codes stand for, fl(value - fl(unit * code)).

        Args:
          values: float32, the bucket's variables of any shapes, together M elements.
          words: uint32 [M / 32, k], their codes.
          units: float32 [p], the value of a code of 1. Where it is infinite, results are 0.
          parts: of each variable.
        """

    @abc.abstractmethod
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
        """Packed codes of a bucket: uint32 [M / 32, planes of the encoder's codes].

        Args:
          gradients: float32, the bucket's v variables of any shapes, together M elements.
          variables: the index of each in the layout; it selects the draws.
          bounds: float32 [p], magnitudes to clip to.
          scales: float32 [p].
          key: of the node.
          encoder: a name in `ternary.ENCODERS`.
          parts: of each variable.
        """

    @abc.abstractmethod
    def sum(self, words: Sequence[tf.Tensor], count: int) -> tf.Tensor:
        """Sum of buckets uint32 [M / 32, k], modulo 2^count: uint32 [M / 32, count]."""

    @abc.abstractmethod
    def decode(
        self,
        words: tf.Tensor,
        units: tf.Tensor,
        nodes: tf.Tensor,
        shapes: Sequence[Sequence[int]],
        parts: Sequence[Parts] = (),
    ) -> list[tf.Tensor]:
        """Means fl(fl(unit / nodes) * sum) of a bucket's variables.

        Args:
          words: uint32 [M / 32, k], sums of the codes of `nodes` nodes.
          units: float32 [p], the value of a code of 1.
          nodes: int32 scalar, not a graph constant (see `ternary.mean_scale`).
          shapes: of the variables, in the bucket's order.
          parts: of each variable.
        """

    def apply_update(
        self,
        sums: Sums,
        weights: Sequence[tf.Variable],
        slots: Sequence[Sequence[tf.Variable]],
        update: Update,
        averages: Averages | None = None,
    ) -> None:
        """Decodes means and updates their variables with them, if `updates`.

        It gives the bits of TensorFlow's own kernels with the decoded means.

        Args:
          sums: of the bucket.
          weights: float32 variables of the bucket, on one CPU device.
          slots: for each slot of the rule its variables, in the shapes of the weights.
          update: the rule.
          averages: the weights' moving averages, which the updated weights change.
        """
        raise NotImplementedError(f"{self.title}: no updates")
