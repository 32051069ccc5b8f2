"""Settings of the whole process, made once before it computes anything, and its kernels."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from terngrad import allocator
from terngrad.gpu.ops import GpuKernels
from terngrad.ops import library
from terngrad.ops.gradient_kernels import GradientKernels
from terngrad.ops.library import PATHS
from terngrad.ops.native import NativeKernels
from terngrad.ops.packing import NativePacking, Packing, ReferencePacking
from terngrad.ops.reference import ReferenceKernels

CHOICES = ("", "native", "reference")


class Choice(NamedTuple):
    """The chosen kernels, and why; as text for the log.

    Attributes:
      kernels: the chosen ones.
      why_reference: why they are not the native ones; "" if they are, or if the user chose them.
    """

    kernels: GradientKernels
    why_reference: str = ""

    def __str__(self) -> str:
        why = f", because {self.why_reference}" if self.why_reference else ""
        return f"{self.kernels.title}{why}"


def choose_kernels(wanted: str = "", path: str = "", on_gpu: bool = False) -> Choice:
    """Chooses what computes in this process.

    Args:
      wanted: one of `CHOICES`; "" = native ones if possible.
      path: instruction set of the native ones, "" = the fastest.
      on_gpu: gradients are on GPUs.

    Raises:
      ValueError: an unknown choice or path, or native ones are wanted but not available.
    """
    if wanted not in CHOICES:
        raise ValueError(f"TERNGRAD_KERNELS is {wanted!r}; allowed are native and reference")
    if path and (wanted == "reference" or path not in PATHS):
        allowed = "none beside TERNGRAD_KERNELS=reference" if path in PATHS else ", ".join(PATHS)
        raise ValueError(f"TERNGRAD_SIMD is {path!r}; allowed are {allowed}")
    if wanted == "reference":
        return Choice(ReferenceKernels(on_gpu=on_gpu))
    try:
        return Choice(GpuKernels(path) if on_gpu else NativeKernels(path))
    except library.UnavailableError as error:
        if path and not on_gpu:
            raise ValueError(f"TERNGRAD_SIMD={path}: {error}") from None
        if wanted:
            raise ValueError(f"TERNGRAD_KERNELS=native: {error}") from None
        return Choice(ReferenceKernels(_best_packing(path), on_gpu), str(error))


def _best_packing(path: str) -> Packing:
    """Returns what packs codes beside the reference."""
    try:
        return NativePacking(path)
    except library.UnavailableError:
        return ReferencePacking()


def configure(
    *,
    deterministic: bool = True,
    intra_threads: int = 0,
    inter_threads: int = 0,
    log_placement: bool = False,
) -> None:
    """Sets TensorFlow's threads and the options for reproducible bits: `terngrad.configure`.

    Nothing else in the library changes TensorFlow's settings, but that a parameter server hides the
    GPUs. Call it before TensorFlow computes anything. It also turns Grappler's arithmetic
    optimization off, which changes the order in which floats of several nodes are added, and keeps
    freed memory in the process.

    Args:
      deterministic: turn TensorFlow's op determinism on. It demands seeds for random operations:
        call tf.keras.utils.set_random_seed.
      intra_threads: threads within one operation; 0 = TensorFlow's choice.
      inter_threads: operations at once; 0 = TensorFlow's choice.
      log_placement: log the device of every operation.
    """
    allocator.keep_freed()
    if intra_threads:
        tf.config.threading.set_intra_op_parallelism_threads(intra_threads)
    if inter_threads:
        tf.config.threading.set_inter_op_parallelism_threads(inter_threads)
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
    tf.debugging.set_log_device_placement(log_placement)
    if deterministic:
        tf.config.experimental.enable_op_determinism()


def towers(count: int, *, on_cpu: bool) -> Sequence[str]:
    """Returns the names of `count` devices: GPUs, or logical CPU devices if there is no GPU.

    TensorFlow sees no other GPUs from then on, so it leaves them and their memory to others.

    Raises:
      ValueError: there are GPUs, but fewer than `count`.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if gpus and not on_cpu:
        if count > len(gpus):
            raise ValueError(f"--num_gpus={count}: this process sees only {len(gpus)} of them.")
        tf.config.set_visible_devices(gpus[:count], "GPU")
        return [f"/GPU:{i}" for i in range(count)]
    use_no_gpu()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * count
    )
    if count > 1:
        print(f"No GPU is used: the {count} towers are logical CPU devices.")
    return [f"/CPU:{i}" for i in range(count)]


def use_no_gpu() -> None:
    """Keeps TensorFlow off the GPUs, so that it takes none of their memory.

    It is too late where TensorFlow has computed on them before.
    """
    with contextlib.suppress(RuntimeError):
        tf.config.set_visible_devices([], "GPU")


def kernels(*, on_gpu: bool = False) -> Choice:
    """Returns the kernels that TERNGRAD_KERNELS and TERNGRAD_SIMD choose; see `choose_kernels`."""
    wanted, path = os.environ.get("TERNGRAD_KERNELS", ""), os.environ.get("TERNGRAD_SIMD", "")
    return choose_kernels(wanted, path, on_gpu)
