"""A GPU with the kernels on it, opened once in a process."""

from __future__ import annotations

import ctypes
import functools

from terngrad.gpu import bindings, kernels
from terngrad.ops.library import UnavailableError


class LaunchError(RuntimeError):
    """The driver refused to run a kernel; the message says which and why."""


class Device:
    """A GPU with the kernels on it. Calls from several threads do not disturb each other."""

    def __init__(self, handle: ctypes.c_void_p):
        """Takes the handle that terngrad_gpu_open returned."""
        self._handle = handle

    def call(self, name: str, *arguments: object) -> None:
        """Calls a function of cc/gpu/functions.cc.

        Args:
          name: "stats", "encode" and so on.
          *arguments: those after the GPU.

        Raises:
          LaunchError: the driver refused.
        """
        error = getattr(bindings.load(), f"terngrad_gpu_{name}")(self._handle, *arguments)
        if error:
            raise LaunchError(error.decode())


@functools.cache
def device(ordinal: int, driver: str = "") -> Device:
    """Returns a GPU with the kernels on it.

    Args:
      ordinal: its number, from 0.
      driver: path of the driver's library; by default the system's.

    Raises:
      UnavailableError: there is no driver, no such GPU, no NVRTC or no native code, or the GPU is
        too old, or the driver is older than NVRTC.
    """
    return Device(opened(bindings.load(), ordinal, driver))


def opened(native: ctypes.CDLL, ordinal: int, driver: str = "") -> ctypes.c_void_p:
    """Returns the handle of a GPU with the kernels on it; see `device`."""
    handle = ctypes.c_void_p()
    if error := native.terngrad_gpu_open(driver.encode(), ordinal, ctypes.byref(handle)):
        raise UnavailableError(error.decode())
    try:
        code = kernels.code(native.terngrad_gpu_capability(handle))
        if error := native.terngrad_gpu_load(handle, code):
            raise UnavailableError(error.decode())
    except UnavailableError as error:
        native.terngrad_gpu_close(handle)
        raise UnavailableError(f"GPU {ordinal}: {error}") from None
    return handle
