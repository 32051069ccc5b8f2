"""The contract of the codec's arithmetic, and the choice of its implementation."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import tensorflow as tf

from terngrad import prefix_code
from terngrad.draws import DrawKey
from terngrad.ops.updates import Averages, Update
from terngrad.planes import WORD_BYTES, plane_count
from terngrad.ternary import Stats


class EncodeInputs(NamedTuple):
    """One node's gradients of a bucket, and how they become codes; see `Kernels.encode`."""

    gradients: Sequence[tf.Tensor]
    bounds: tf.Tensor
    scales: tf.Tensor
    key: DrawKey


class Sums(NamedTuple):
    """The mean gradients of a bucket before they are decoded; see `Kernels.decode`.

    Attributes:
      variables: indices of the bucket's v variables in the layout, in its order.
      words: uint32 [M / 32, k], sums of codes.
      units: float32 [v], the value of a code of 1 of each variable.
      nodes: int32 scalar, number of nodes in the sums.
    """

    variables: tuple[int, ...]
    words: tf.Tensor
    units: tf.Tensor
    nodes: tf.Tensor


class Kernels(abc.ABC):
    """Statistics, ternary codes, their sums and means, and updates with these.

    Implementations agree bit for bit, except for the statistics' sums: those agree to 1e-6.

    Attributes:
      title: for the log.
      family: within one even those sums agree bit for bit, so all workers need the same.
      updates: whether they also update variables with sums, see `apply_update`.
    """

    title: str
    family: Literal["native", "reference"]
    updates: bool = False

    @abc.abstractmethod
    def stats(self, gradients: Sequence[tf.Tensor]) -> Stats:
        """Statistics of v gradients of any shape, each field float32 [v]."""

    @abc.abstractmethod
    def encode(
        self,
        gradients: Sequence[tf.Tensor],
        variables: Sequence[int],
        bounds: tf.Tensor,
        scales: tf.Tensor,
        key: DrawKey,
    ) -> tf.Tensor:
        """Packed codes of a bucket, see `ternary.ternarize`: uint32 [M / 32, 2].

        Args:
          gradients: float32, the bucket's v variables of any shapes, together M elements.
          variables: the index of each in the layout; it selects the draws.
          bounds: float32 [v], magnitudes to clip to.
          scales: float32 [v].
          key: of the node.
        """

    @abc.abstractmethod
    def sum(self, words: Sequence[tf.Tensor], count: int) -> tf.Tensor:
        """Sum of buckets uint32 [M / 32, k], modulo 2^count: uint32 [M / 32, count]."""

    def sum_buffers(self, buffers: Sequence[memoryview], planes: int, count: int) -> memoryview:
        """`sum` of buckets that lie in memory, with `planes` each; returns little-endian bytes.

        Many threads may call at the same time; each computes by itself.
        """
        arrays = [np.frombuffer(buffer, "<u4").reshape(-1, planes) for buffer in buffers]
        total = self.sum([tf.constant(array) for array in arrays], count)
        return np.asarray(total).reshape(-1).view(np.uint8).data  # .numpy() would copy

    def difference_buffers(
        self, total: memoryview, part: memoryview, planes: int, count: int
    ) -> memoryview:
        """A bucket of `count` planes minus one of `planes`, modulo 2^count; as `sum_buffers`."""
        # In two's complement ~x is -x - 1, so ~(~x + y) is x - y.
        negative, addend = ~np.frombuffer(total, "<u4"), np.frombuffer(part, "<u4")
        words = [tf.constant(negative.reshape(-1, count)), tf.constant(addend.reshape(-1, planes))]
        return (~np.asarray(self.sum(words, count))).reshape(-1).view(np.uint8).data

    def pack(self, words: memoryview, largest: int) -> memoryview:
        """Integers in [-largest, largest] in the prefix code, see prefix_code.py; as `sum_buffers`.

        Args:
          words: their plane_count(largest) planes.
          largest: up to `prefix_code.LARGEST`.
        """
        array = np.frombuffer(words, "<u4").reshape(-1, plane_count(largest))
        return prefix_code.pack(array, largest).data

    def unpack(self, packed: memoryview, largest: int, words: np.ndarray) -> None:
        """Writes the planes of integers in the prefix code to the contiguous bytes `words`.

        Raises:
          ValueError: `packed` has a size that no code of so many integers has.
        """
        count = plane_count(largest)
        rows = words.nbytes // (WORD_BYTES * count)
        array = prefix_code.unpack(np.frombuffer(packed, np.uint8), largest, rows, count)
        words[:] = array.reshape(-1).view(np.uint8)

    @abc.abstractmethod
    def decode(
        self,
        words: tf.Tensor,
        scales: tf.Tensor,
        nodes: tf.Tensor,
        shapes: Sequence[Sequence[int]],
    ) -> list[tf.Tensor]:
        """Means fl(fl(scale / nodes) * sum) of a bucket's variables.

        Args:
          words: uint32 [M / 32, k], sums of the codes of `nodes` nodes.
          scales: float32 [v].
          nodes: int32 scalar, not a graph constant (see `ternary.mean_scale`).
          shapes: of the variables, in the bucket's order.
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
