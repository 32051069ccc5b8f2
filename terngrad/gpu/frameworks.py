"""Arrays on a GPU, of CuPy or PyTorch: where they are, and how to make more of the same kind.

Neither package is imported here: an array of it shows that it is loaded.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple, Protocol


class ArrayView(NamedTuple):
    """The properties of an array that kernels need.

    Attributes:
      owner: the array, or a contiguous copy of it; its memory lives as long.
      address: of its first value, in the device's memory.
      shape: its shape.
      dtype: "float32", "float16", "bfloat16", "uint32" and so on.
    """

    owner: Any
    address: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """The number of values."""
        return math.prod(self.shape)


class Framework(Protocol):
    """How the arrays of a package are read and made."""

    name: str

    def is_on_gpu(self, array: Any) -> bool:
        """Returns whether an array of the package lies on a GPU."""

    def device_of(self, array: Any) -> int:
        """Returns the index of the device that an array is on."""

    def is_here(self, array: Any, device: int) -> bool:
        """Returns whether something is an array of the package on a device."""

    def view(self, array: Any) -> ArrayView:
        """Returns the view of an array on a GPU; copies the array if it is not contiguous."""

    def empty(self, shape: Sequence[int], dtype: str, device: int) -> Any:
        """Returns a new array; its memory belongs to the current stream."""

    def stream(self, device: int) -> int:
        """Returns the handle of the device's current stream."""


class CuPy:
    """Arrays of CuPy."""

    name = "CuPy"

    def __init__(self, cupy: ModuleType):
        """Takes the package."""
        self._cupy = cupy

    def is_on_gpu(self, array: Any) -> bool:
        """See Framework."""
        return isinstance(array, self._cupy.ndarray)

    def device_of(self, array: Any) -> int:
        """See Framework."""
        return array.device.id

    def is_here(self, array: Any, device: int) -> bool:
        """See Framework."""
        return self.is_on_gpu(array) and array.device.id == device

    def view(self, array: Any) -> ArrayView:
        """See Framework."""
        if not array.flags.c_contiguous:
            with array.device:
                array = self._cupy.ascontiguousarray(array)
        return ArrayView(array, array.data.ptr, array.shape, array.dtype.name)

    def empty(self, shape: Sequence[int], dtype: str, device: int) -> Any:
        """See Framework."""
        with self._cupy.cuda.Device(device):
            return self._cupy.empty(tuple(shape), dtype)

    def stream(self, device: int) -> int:
        """See Framework."""
        with self._cupy.cuda.Device(device):
            return self._cupy.cuda.get_current_stream().ptr


class PyTorch:
    """Tensors of PyTorch 2.3 or later, which has uint32."""

    name = "PyTorch"

    def __init__(self, torch: ModuleType):
        """Takes the package."""
        self._torch = torch

    def is_on_gpu(self, array: Any) -> bool:
        """See Framework."""
        return isinstance(array, self._torch.Tensor) and array.is_cuda

    def device_of(self, array: Any) -> int:
        """See Framework."""
        return array.device.index

    def is_here(self, array: Any, device: int) -> bool:
        """See Framework."""
        return self.is_on_gpu(array) and array.device.index == device

    def view(self, array: Any) -> ArrayView:
        """See Framework."""
        tensor = array.detach().contiguous()
        dtype = str(tensor.dtype).removeprefix("torch.")
        return ArrayView(tensor, tensor.data_ptr(), tuple(tensor.shape), dtype)

    def empty(self, shape: Sequence[int], dtype: str, device: int) -> Any:
        """See Framework."""
        return self._torch.empty(
            tuple(shape),
            dtype=getattr(self._torch, dtype),
            device=self._torch.device("cuda", device),
        )

    def stream(self, device: int) -> int:
        """See Framework."""
        return self._torch.cuda.current_stream(device).cuda_stream


FRAMEWORKS: Mapping[str, Callable[[ModuleType], Framework]] = {"cupy": CuPy, "torch": PyTorch}


def framework_of(array: Any) -> Framework | None:
    """Returns the framework of an array on a GPU; None if it is something else.

    Raises:
      ValueError: it is on a GPU, and of another package.
    """
    if not hasattr(type(array), "__cuda_array_interface__"):
        return None
    packages = _packages(type(array))
    for package in packages:
        if package in FRAMEWORKS:
            framework = FRAMEWORKS[package](sys.modules[package])
            return framework if framework.is_on_gpu(array) else None
    if getattr(array, "__cuda_array_interface__", None) is None:  # such as of JAX, on a CPU
        return None
    what = "arrays on a GPU must be of CuPy or PyTorch, which take others by from_dlpack"
    raise ValueError(f"an array is of {packages[0]}; {what}")


@functools.cache
def _packages(kind: type) -> list[str]:
    """Returns the packages of a class and of those that it comes from."""
    return [each.__module__.partition(".")[0] for each in kind.__mro__]
