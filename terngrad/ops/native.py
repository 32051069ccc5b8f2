"""The codec's arithmetic in native ops; their contracts: terngrad/cc/ops/ternary_ops.cc."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from terngrad.draws import DrawKey
from terngrad.ops import library
from terngrad.ops.kernels import Kernels, Sums
from terngrad.ops.updates import Averages, Update
from terngrad.planes import WORD_BYTES, plane_count
from terngrad.ternary import Stats


class NativeKernels(Kernels):
    """Runs on the CPU, on the threads of TensorFlow's pool.

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
            path=self.path,
        )

    def sum(self, words: Sequence[tf.Tensor], count: int) -> tf.Tensor:
        """See base class."""
        return self._ops.terngrad_sum(words=words, planes=count, path=self.path)

    def sum_buffers(self, buffers: Sequence[memoryview], planes: int, count: int) -> memoryview:
        """See base class; in the calling thread alone, which meanwhile holds no lock on Python."""
        arrays, rows = _words(buffers, planes)
        total = np.empty(rows * count, "<u4")
        inputs = (library.Planes * len(arrays))(*((a.ctypes.data, planes) for a in arrays))
        compute, path = self._functions.terngrad_sum, self.path.encode()
        if not compute(path, inputs, len(arrays), count, rows, total.ctypes.data):
            raise ValueError(f"path is {self.path!r}, planes are {planes} and {count}")
        return total.view(np.uint8).data

    def pack(self, words: memoryview, largest: int) -> memoryview:
        """See base class; as `sum_buffers`."""
        (array,), rows = _words([words], plane_count(largest))
        packed = np.empty(array.nbytes, np.uint8)
        compute, path = self._functions.terngrad_pack, self.path.encode()
        size = compute(path, array.ctypes.data, largest, rows, packed.ctypes.data)
        if size < 0:
            raise ValueError(f"path is {self.path!r}, largest is {largest}")
        return packed[:size].data

    def unpack(self, packed: memoryview, largest: int, words: np.ndarray) -> None:
        """See base class; as `sum_buffers`."""
        array = np.frombuffer(packed, np.uint8)
        rows = words.nbytes // (WORD_BYTES * plane_count(largest))
        compute, path = self._functions.terngrad_unpack, self.path.encode()
        source, target = array.ctypes.data, words.ctypes.data
        if not compute(path, source, array.size, largest, rows, target):
            raise ValueError(f"{array.size} bytes are no code of {rows} rows up to {largest}")

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
            words=sums.words, scales=sums.units, nodes=sums.nodes, rate=update.rate, gain=gain,
            weights=[v.handle for v in weights],
            slots=[v.handle for variables in slots for v in variables],
            averages=[v.handle for v in shadows],
            rule=update.rule, momentum=update.momentum, mean_share=update.mean_share,
            square_share=update.square_share, epsilon=update.epsilon, path=self.path,
        )  # fmt: skip


def _words(buffers: Sequence[memoryview], planes: int) -> tuple[list[np.ndarray], int]:
    """Returns buffers as arrays of words, and how many words they have for each plane."""
    arrays = [np.require(np.frombuffer(buffer, "<u4"), requirements="A") for buffer in buffers]
    rows = arrays[0].size // planes
    if any(array.size != rows * planes for array in arrays):
        sizes = [array.nbytes for array in arrays]
        raise ValueError(f"buffers have {sizes} bytes; all need as many, of {planes} planes")
    return arrays, rows
