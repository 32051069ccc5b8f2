"""The GPU kernels of the TensorFlow ops, loaded before a graph uses them."""

from __future__ import annotations

import functools

import tensorflow as tf

from terngrad.gpu import bindings, device
from terngrad.ops import library
from terngrad.ops.library import UnavailableError
from terngrad.ops.native import NativeKernels


@functools.cache
def prepare(driver: str = "") -> tuple[str, ...]:
    """Loads the kernels onto all GPUs that TensorFlow sees; they stay there.

    Args:
      driver: path of the driver's library; by default the system's.

    Returns:
      The architecture of each, such as "sm_90".

    Raises:
      UnavailableError: there is no GPU; see also `device.device`.
    """
    gpus = tf.config.get_visible_devices("GPU")
    if not gpus:
        raise UnavailableError("TensorFlow sees no GPU")
    native, found = bindings.of(library.load_functions()), []
    for ordinal in (int(gpu.name.rpartition(":")[2]) for gpu in gpus):
        handle = device.opened(native, ordinal, driver)
        found.append(f"sm_{native.terngrad_gpu_capability(handle)}")
        native.terngrad_gpu_keep(handle, ordinal)
    return tuple(found)


class GpuKernels(NativeKernels):
    """Runs where the gradients are, on GPUs, by the same ops; only packing is the CPU's."""

    on_gpu = True

    def __init__(self, path: str = "") -> None:
        """Loads the ops, and the kernels onto all GPUs that TensorFlow sees.

        Args:
          path: instruction set of what packs codes; see base class.

        Raises:
          library.UnavailableError: also where a GPU, its driver or NVRTC cannot do it.
          ValueError: see base class.
        """
        super().__init__(path)
        self._of_cpu = NativeKernels(path)
        self.path = "gpu"  # of the ops
        targets = prepare()
        self.title = f"native kernels (GPUs: {', '.join(targets)})"

    @property
    def of_cpu(self) -> NativeKernels:
        """See base class."""
        return self._of_cpu
