"""A GPU simulated on the host: arrays, their package, and a driver (cc/gpu/testing/)."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import ArrayLike, NDArray

from terngrad.gpu import arrays, device, frameworks, kernels
from terngrad.ops import build
from terngrad.ops.library import FLAGS
from terngrad.testing import native

ARCHITECTURES = (70, 80, 90, 120)  # that tests compile for
STREAM = 77  # handle of the current stream
_open = device.device.__wrapped__  # a new one each time
_SOURCES = ("terngrad/cc/gpu/testing/fake_driver.cc", "terngrad/cc/gpu/testing/host_entries.cc")


class HostArray:
    """An array that says that it is on a GPU.

    Attributes:
      values: what it holds, an array of NumPy; of bfloat16 values their bits.
      dtype: name of its type.
      device: index of its GPU.
    """

    def __init__(self, values: ArrayLike, dtype: str | None = None, device: int = 0):
        """Takes over a NumPy array; see the class for the rest."""
        self.values: NDArray = np.asarray(values)
        self.dtype = dtype or self.values.dtype.name
        self.device = device

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the values."""
        return self.values.shape

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """See CUDA Array Interface 3."""
        found = self.values.__array_interface__
        return {key: found[key] for key in ("shape", "typestr", "data")} | {"version": 3}


class HostArrays:
    """The framework of HostArray; see terngrad/gpu/frameworks.py."""

    name = "HostArrays"

    def __init__(self, module: ModuleType | None = None):
        """Needs no module."""

    def is_on_gpu(self, array: Any) -> bool:
        """See Framework."""
        return isinstance(array, HostArray)

    def device_of(self, array: HostArray) -> int:
        """See Framework."""
        return array.device

    def is_here(self, array: Any, device: int) -> bool:
        """See Framework."""
        return isinstance(array, HostArray) and array.device == device

    def view(self, array: HostArray) -> frameworks.ArrayView:
        """See Framework."""
        values, address = array.values, array.values.ctypes.data
        if not values.flags.c_contiguous:
            array = HostArray(np.ascontiguousarray(values), array.dtype, array.device)
            address = array.values.ctypes.data
        return frameworks.ArrayView(array, address, values.shape, array.dtype)

    def empty(self, shape: Sequence[int], dtype: str, device: int) -> HostArray:
        """See Framework."""
        values = np.empty(tuple(shape), dtype)
        values.reshape(-1).view(np.uint8).fill(0xA5)
        return HostArray(values, device=device)

    def stream(self, device: int) -> int:
        """See Framework."""
        return STREAM


class FakeDriver:
    """A driver whose only GPU is the host.

    Attributes:
      path: of its library, one for each FakeDriver.
    """

    def __init__(self, folder: Path):
        """Links it in a folder. Skips the test if there is no compiler."""
        self.path = str(folder / "libcuda.so.1")
        cxx = native.compiler()
        compiled = build.compiled(cxx, _SOURCES, FLAGS)
        build.run([cxx, "-shared", *compiled, "-Wl,-soname," + self.path, "-o", self.path])
        self._library = ctypes.CDLL(self.path)
        self._library.fake_driver_get.restype = ctypes.c_int64
        self._library.fake_driver_current.restype = ctypes.c_int64
        self._library.fake_driver_set.argtypes = (ctypes.c_char_p, ctypes.c_int64)

    def __getitem__(self, name: str) -> int:
        """Returns a number; see `Numbers` of fake_driver.cc. "current" is that of this thread."""
        if name == "current":
            return self._library.fake_driver_current()
        return self._library.fake_driver_get(name.encode())

    def __setitem__(self, name: str, value: int) -> None:
        """Sets a number."""
        self._library.fake_driver_set(name.encode(), value)

    @contextlib.contextmanager
    def setting(self, **numbers: int) -> Iterator[None]:
        """Sets numbers for a while; underscores stand for spaces after "failing"."""
        names = {name.replace("failing_", "failing ", 1): n for name, n in numbers.items()}
        before = {name: self[name] for name in names}
        try:
            for name, number in names.items():
                self[name] = number
            yield
        finally:
            for name, number in before.items():
                self[name] = number

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """`terngrad.numpy` takes HostArrays and computes by this driver."""
        opened = {}

        def open_device(ordinal: int) -> device.Device:
            if ordinal not in opened:
                opened[ordinal] = _open(ordinal, self.path)
            return opened[ordinal]

        with (
            mock.patch.dict(frameworks.FRAMEWORKS, {"terngrad": HostArrays}),
            mock.patch.object(arrays, "device", open_device),
            mock.patch.object(device, "device", open_device),
            mock.patch.object(kernels, "code", lambda capability: b"code"),
        ):
            yield
