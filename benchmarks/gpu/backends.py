"""Arrays on a GPU, for the checks and timings: those of PyTorch, or else of CuPy."""

from __future__ import annotations

import ctypes
import importlib
import warnings
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from terngrad.gpu import bindings, device

Task = Callable[[], object]

_INTEGERS = {1: np.int8, 2: np.int16, 4: np.int32}


class NoGpuError(RuntimeError):
    """There is no package of arrays on a GPU, or no GPU; the message says which."""


class Backend(Protocol):
    """Arrays on a GPU and its clock.

    Attributes:
      name: the package and its version.
      dtypes: the dtypes of gradients that it supports.
    """

    name: str
    dtypes: tuple[str, ...]

    def describe(self) -> str:
        """Returns name and properties of the GPU."""

    def put(self, values: NDArray, dtype: str = "") -> Any:
        """Returns a copy on the GPU; for a `dtype` that NumPy lacks, `values` has its bits."""

    def get(self, array: Any) -> NDArray:
        """Returns a copy in the host's memory."""

    def address(self, array: Any) -> int:
        """Returns where an array begins."""

    def copy(self, target: Any, source: Any) -> None:
        """Copies an array to another on the GPU."""

    def host_copies(self, array: Any) -> Mapping[str, Task]:
        """Returns copies to the host and back, by direction; the host's memory is pinned."""

    def stream(self) -> int:
        """Returns the handle of the current stream."""

    def record(self) -> Any:
        """Records an event on the current stream and returns it."""

    def seconds(self, start: Any, end: Any) -> float:
        """Waits for two events and returns the time between them."""

    def encoder_alternatives(self, values: Any) -> Mapping[str, Task]:
        """Returns the package's own alternatives to an encoder, by name."""


def launcher(backend: Backend, name: str, table: ctypes.Array, *arguments: object) -> Task:
    """Returns a task that launches kernels.

    Args:
      backend: chooses the stream.
      name: of a function of cc/gpu/functions.cc, without its prefix.
      table: the array among the arguments that decides the size of the scratch memory.
      *arguments: the function's arguments between the GPU and the scratch memory.
    """
    scratch = backend.put(np.zeros(bindings.scratch_bytes(table), np.uint8))
    gpu, place = device.device(0), (backend.address(scratch), backend.stream())
    return lambda scratch=scratch: gpu.call(name, *arguments, *place)  # the memory lives as long


class PyTorch:
    """PyTorch."""

    dtypes = ("float32", "float16", "bfloat16")

    def __init__(self, torch: ModuleType):
        """Takes the package; raises NoGpuError."""
        if not torch.cuda.is_available():
            raise NoGpuError("PyTorch finds no GPU")
        if not hasattr(torch, "uint32"):
            raise NoGpuError(f"PyTorch {torch.__version__} has no uint32; 2.3 or later does")
        self._torch = torch
        self.name = f"PyTorch {torch.__version__}"

    def describe(self) -> str:
        """See Backend."""
        found = self._torch.cuda.get_device_properties(0)
        capability = f"compute capability {found.major}.{found.minor}"
        return f"{found.name}, {capability}, {found.total_memory / 2**30:.0f} GiB"

    def put(self, values: NDArray, dtype: str = "") -> Any:
        """See Backend."""
        dtype = dtype or values.dtype.name
        integers = np.array(values, order="C").view(_INTEGERS[values.itemsize])
        return self._torch.from_numpy(integers).cuda().view(getattr(self._torch, dtype))

    def get(self, array: Any) -> NDArray:
        """See Backend."""
        octets = array.contiguous().reshape(-1).view(self._torch.uint8).cpu().numpy()
        return octets.view(str(array.dtype).removeprefix("torch.")).reshape(tuple(array.shape))

    def address(self, array: Any) -> int:
        """See Backend."""
        return array.data_ptr()

    def copy(self, target: Any, source: Any) -> None:
        """See Backend."""
        target.copy_(source)

    def host_copies(self, array: Any) -> Mapping[str, Task]:
        """See Backend."""
        host = self._torch.empty_like(array, device="cpu", pin_memory=True)
        return {
            "to the host": lambda: host.copy_(array, non_blocking=True),
            "from the host": lambda: array.copy_(host, non_blocking=True),
        }

    def stream(self) -> int:
        """See Backend."""
        return self._torch.cuda.current_stream().cuda_stream

    def record(self) -> Any:
        """See Backend."""
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start: Any, end: Any) -> float:
        """See Backend."""
        end.synchronize()
        return start.elapsed_time(end) / 1000

    def encoder_alternatives(self, values: Any) -> Mapping[str, Task]:
        """See Backend."""
        torch = self._torch
        scale = values.abs().max()
        unit = float(scale) / 127

        def ternary() -> object:
            return (torch.sign(values) * torch.bernoulli(values.abs() / scale)).to(torch.int8)

        def rounded() -> object:
            return torch.round(values / unit).clamp(-127, 127).to(torch.int8)

        def quantized() -> object:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # PyTorch is about to drop it
                return torch.quantize_per_tensor(values, unit, 0, torch.qint8)

        found = {
            "PyTorch, elementwise TernGrad": ternary,
            "PyTorch, elementwise rounding to 8 bits": rounded,
        }
        if hasattr(torch, "quantize_per_tensor"):
            found["PyTorch, quantize_per_tensor"] = quantized
        return found


class CuPy:
    """CuPy."""

    dtypes = ("float32", "float16")

    def __init__(self, cupy: ModuleType):
        """Takes the package; raises NoGpuError."""
        try:
            count = cupy.cuda.runtime.getDeviceCount()
        except cupy.cuda.runtime.CUDARuntimeError:
            count = 0
        if not count:
            raise NoGpuError("CuPy finds no GPU")
        self._cupy = cupy
        self.name = f"CuPy {cupy.__version__}"

    def describe(self) -> str:
        """See Backend."""
        found = self._cupy.cuda.runtime.getDeviceProperties(0)
        capability = f"compute capability {found['major']}.{found['minor']}"
        return f"{found['name'].decode()}, {capability}, {found['totalGlobalMem'] / 2**30:.0f} GiB"

    def put(self, values: NDArray, dtype: str = "") -> Any:
        """See Backend."""
        return self._cupy.array(values)

    def get(self, array: Any) -> NDArray:
        """See Backend."""
        return self._cupy.asnumpy(array)

    def address(self, array: Any) -> int:
        """See Backend."""
        return array.data.ptr

    def copy(self, target: Any, source: Any) -> None:
        """See Backend."""
        target.data.copy_from_device_async(source.data, source.nbytes)

    def host_copies(self, array: Any) -> Mapping[str, Task]:
        """See Backend."""
        host = self._cupy.cuda.alloc_pinned_memory(array.nbytes)
        given, stream = (host.ptr, array.nbytes), self._cupy.cuda.get_current_stream()
        return {
            "to the host": lambda: array.data.copy_to_host_async(*given, stream),
            "from the host": lambda: array.data.copy_from_host_async(*given, stream),
        }

    def stream(self) -> int:
        """See Backend."""
        return self._cupy.cuda.get_current_stream().ptr

    def record(self) -> Any:
        """See Backend."""
        event = self._cupy.cuda.Event()
        event.record(self._cupy.cuda.get_current_stream())
        return event

    def seconds(self, start: Any, end: Any) -> float:
        """See Backend."""
        end.synchronize()
        return self._cupy.cuda.get_elapsed_time(start, end) / 1000

    def encoder_alternatives(self, values: Any) -> Mapping[str, Task]:
        """See Backend."""
        return {}


def find() -> Backend:
    """Returns PyTorch, or CuPy if there is no PyTorch with a GPU.

    Raises:
      NoGpuError: there is neither, or no GPU.
    """
    reasons = []
    for name, kind in (("torch", PyTorch), ("cupy", CuPy)):
        try:
            return kind(importlib.import_module(name))
        except ImportError:
            continue
        except NoGpuError as error:
            reasons.append(str(error))
    raise NoGpuError("; ".join(reasons) or "neither PyTorch nor CuPy is installed")
