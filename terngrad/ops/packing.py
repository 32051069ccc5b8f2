"""Operations on codes in buffers, between the network and tensors: sums, and the prefix code."""

from __future__ import annotations

import abc
from collections.abc import Sequence

import numpy as np

from terngrad import prefix_code
from terngrad.layout import MAX_SUM
from terngrad.ops import library
from terngrad.ops.array_checks import MAX_PLANES
from terngrad.planes import GROUP, WORD_BYTES, add_all, fits, plane_count


class Packing(abc.ABC):
    """Sums of codes, and their prefix code (terngrad/prefix_code.py).

    Buffers are little-endian bytes of bit planes, see planes.py. Implementations give the same
    bytes. Many threads may call at the same time; each call runs in its thread.

    Attributes:
      path: instruction set of native functions; else "".
    """

    path: str = ""

    def sum_buffers(self, buffers: Sequence[memoryview], planes: int, count: int) -> memoryview:
        """Returns the sum of buckets of `planes` planes each, modulo 2^count, in `count` planes.

        Raises:
          ValueError: the buffers differ in size.
        """
        return _bytes(self._sum(_arrays(buffers, planes), count))

    def difference_buffers(
        self, total: memoryview, part: memoryview, planes: int, count: int
    ) -> memoryview:
        """Returns a bucket of `count` planes minus one of `planes`, modulo 2^count."""
        # In two's complement ~x is -x - 1, so ~(~x + y) is x - y.
        (whole,), (addend,) = _arrays([total], count), _arrays([part], planes)
        return _bytes(~self._sum([~whole, addend], count))

    @abc.abstractmethod
    def _sum(self, words: Sequence[np.ndarray], count: int) -> np.ndarray:
        """Returns the sum of uint32 [G, k], modulo 2^count: uint32 [G, count]."""

    @abc.abstractmethod
    def pack(self, words: memoryview, largest: int) -> memoryview:
        """Returns integers in [-largest, largest] in the prefix code.

        Args:
          words: their plane_count(largest) planes.
          largest: up to `layout.MAX_SUM`.
        """

    @abc.abstractmethod
    def unpack(self, packed: memoryview, largest: int, words: np.ndarray) -> None:
        """Writes the planes of integers in the prefix code to the contiguous bytes `words`.

        Raises:
          ValueError: `packed` is no code of so many integers.
        """

    def read(self, packed: memoryview, largest: int, count: int) -> np.ndarray:
        """Returns the planes of `count` integers in the prefix code, little-endian uint32 [G, k].

        Raises:
          ValueError: `packed` is no code of so many integers, or one of them exceeds `largest`.
        """
        words = np.empty((-(-count // GROUP), plane_count(largest)), "<u4")
        self.unpack(packed, largest, words.reshape(-1).view(np.uint8))
        are_planes = packed.nbytes == words.nbytes  # which may hold any integers
        if are_planes and not fits(words, count, largest):
            raise ValueError(f"integers are out of range; allowed are -{largest} to {largest}")
        return words


class ReferencePacking(Packing):
    """Computes with TensorFlow's and NumPy's operations, which define the results."""

    def _sum(self, words: Sequence[np.ndarray], count: int) -> np.ndarray:
        return np.asarray(add_all(words, count))  # .numpy() would copy

    def pack(self, words: memoryview, largest: int) -> memoryview:
        """See base class."""
        array = np.frombuffer(words, "<u4").reshape(-1, plane_count(largest))
        return prefix_code.pack(array, largest).data

    def unpack(self, packed: memoryview, largest: int, words: np.ndarray) -> None:
        """See base class."""
        rows, count = _rows(words, largest), plane_count(largest)
        array = prefix_code.unpack(np.frombuffer(packed, np.uint8), largest, rows, count)
        words[:] = array.reshape(-1).view(np.uint8)


class NativePacking(Packing):
    """Computes with the native code, in the calling thread, without Python's lock."""

    def __init__(self, path: str = "") -> None:
        """Loads the functions; for the path and errors see `NativeKernels`."""
        self._functions = library.load_functions()
        self.path = library.choose_path(self._functions, path)

    def _sum(self, words: Sequence[np.ndarray], count: int) -> np.ndarray:
        rows = words[0].shape[0]
        total = np.empty((rows, count), "<u4")
        inputs = (library.Planes * len(words))(*((w.ctypes.data, w.shape[1]) for w in words))
        compute, path = self._functions.terngrad_sum, self.path.encode()
        if not compute(path, inputs, len(words), count, rows, total.ctypes.data):
            given = max(w.shape[1] for w in words)
            planes = f"{given} planes in, {count} out"
            raise ValueError(f"sum of planes: {planes}; allowed are 1 to {MAX_PLANES}")
        return total

    def pack(self, words: memoryview, largest: int) -> memoryview:
        """See base class."""
        (array,) = _arrays([words], plane_count(largest))
        packed = np.empty(array.nbytes, np.uint8)
        compute, path = self._functions.terngrad_pack, self.path.encode()
        size = compute(path, array.ctypes.data, largest, array.shape[0], packed.ctypes.data)
        if size < 0:
            raise ValueError(f"pack: largest is {largest}; allowed are 1 to {MAX_SUM}")
        return packed[:size].data

    def unpack(self, packed: memoryview, largest: int, words: np.ndarray) -> None:
        """See base class."""
        array, rows = np.frombuffer(packed, np.uint8), _rows(words, largest)
        compute, path = self._functions.terngrad_unpack, self.path.encode()
        source, target = array.ctypes.data, words.ctypes.data
        if not compute(path, source, array.size, largest, rows, target):
            raise ValueError(f"{array.size} bytes are no code of {rows} rows up to {largest}")


def _arrays(buffers: Sequence[memoryview], planes: int) -> list[np.ndarray]:
    """Returns buffers as uint32 [G, planes], aligned."""
    arrays = [np.require(np.frombuffer(buffer, "<u4"), requirements="A") for buffer in buffers]
    if any(array.size != arrays[0].size or array.size % planes for array in arrays):
        sizes = [array.nbytes for array in arrays]
        raise ValueError(f"buffers have {sizes} bytes; all need as many, of {planes} planes")
    return [array.reshape(-1, planes) for array in arrays]


def _bytes(words: np.ndarray) -> memoryview:
    return words.reshape(-1).view(np.uint8).data


def _rows(words: np.ndarray, largest: int) -> int:
    """Returns the groups of 32 integers that lie in bytes of planes."""
    return words.nbytes // (WORD_BYTES * plane_count(largest))
