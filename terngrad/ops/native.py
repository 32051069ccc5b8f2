"""The codec's arithmetic in native ops; their contracts: terngrad/cc/ops/ternary_ops.cc."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from terngrad.draws import DrawKey
from terngrad.ops import library
from terngrad.ops.kernels import Kernels
from terngrad.ternary import Stats


class NativeKernels(Kernels):
    """Runs on the CPU, on the threads of TensorFlow's pool.

    Attributes:
      path: instruction set, one of `PATHS`.
    """

    family = "native"

    def __init__(self, path: str = "") -> None:
        """Loads the ops.

        Args:
          path: instruction set, one of `library.PATHS`; "" = the fastest that this processor has.

        Raises:
          library.UnavailableError: see there.
          ValueError: an unknown path, or one that this processor does not have.
        """
        self._ops = library.load()
        self._functions = library.load_functions()
        self.path = library.choose_path(self._functions, path)
        self.title = f"native kernels ({self.path})"

    def stats(self, gradients: Sequence[tf.Tensor]) -> Stats:
        """See base class."""
        return Stats(*self._ops.terngrad_stats(gradients=gradients, path=self.path))

    def encode(
        self,
        gradients: Sequence[tf.Tensor],
        variables: Sequence[int],
        bounds: tf.Tensor,
        scales: tf.Tensor,
        key: DrawKey,
        firsts: Sequence[int] = (),
    ) -> tf.Tensor:
        """See base class."""
        return self._ops.terngrad_encode(
            gradients=gradients,
            bounds=bounds,
            scales=scales,
            seed=key.seed,
            step=tf.cast(key.step, tf.int64),
            node=tf.cast(key.node, tf.int32),
            variables=list(variables),
            firsts=list(firsts),
            path=self.path,
        )

    def sum(self, words: Sequence[tf.Tensor], count: int) -> tf.Tensor:
        """See base class."""
        return self._ops.terngrad_sum(words=words, planes=count, path=self.path)

    def sum_buffers(self, buffers: Sequence[memoryview], planes: int, count: int) -> memoryview:
        """See base class; in the calling thread alone, which meanwhile holds no lock on Python."""
        return self._sum_arrays([(_words(buffer), planes) for buffer in buffers], count).data

    def difference_buffers(
        self, total: memoryview, part: memoryview, planes: int, count: int
    ) -> memoryview:
        """See base class; in the calling thread alone, which meanwhile holds no lock on Python."""
        # In two's complement ~x is -x - 1, so ~(~x + y) is x - y.
        inverse = self._sum_arrays([(~_words(total), count), (_words(part), planes)], count)
        return np.invert(inverse, out=inverse).data

    def _sum_arrays(self, inputs: Sequence[tuple[np.ndarray, int]], count: int) -> np.ndarray:
        """Returns the bytes of the sum of uint32 arrays with these planes."""
        given = [planes for _, planes in inputs]
        rows = inputs[0][0].size // given[0]
        if any(array.size != rows * planes for array, planes in inputs):
            sizes = [array.nbytes for array, _ in inputs]
            raise ValueError(f"buffers have {sizes} bytes of {given} planes; all need as many rows")
        buckets = (library.Planes * len(inputs))(*((a.ctypes.data, p) for a, p in inputs))
        total = np.empty(rows * count, "<u4")
        if not self._functions.terngrad_sum(
            self.path.encode(), buckets, len(inputs), count, rows, total.ctypes.data
        ):
            raise ValueError(f"path is {self.path!r}, planes are {given} and {count}")
        return total.view(np.uint8)

    def decode(
        self,
        words: tf.Tensor,
        scales: tf.Tensor,
        nodes: tf.Tensor,
        shapes: Sequence[Sequence[int]],
    ) -> list[tf.Tensor]:
        """See base class."""
        return self._ops.terngrad_decode(
            words=words, scales=scales, nodes=nodes, shapes=list(shapes), path=self.path,
            n=len(shapes),
        )  # fmt: skip


def _words(buffer: memoryview) -> np.ndarray:
    """Returns a buffer as aligned words."""
    return np.require(np.frombuffer(buffer, "<u4"), requirements="A")
