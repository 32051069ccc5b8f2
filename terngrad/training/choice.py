"""Native kernels where there are any, else the reference ops."""

from __future__ import annotations

from typing import NamedTuple

from terngrad.gpu.ops import GpuKernels
from terngrad.ops import library
from terngrad.ops.gradient_kernels import GradientKernels
from terngrad.ops.library import PATHS
from terngrad.ops.native import NativeKernels
from terngrad.ops.packing import NativePacking, Packing, ReferencePacking
from terngrad.ops.reference import ReferenceKernels

CHOICES = ("", "native", "reference")


class Choice(NamedTuple):
    """Kernels, and how they came to be used; its text is for the log.

    Attributes:
      kernels: that were chosen.
      why_reference: why they are not the native ones; "" if they are, or were named.
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
      ValueError: an unknown choice or path, or native ones are wanted but not to be had.
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
