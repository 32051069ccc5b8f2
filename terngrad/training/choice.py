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
_UNTRIED = "native kernels have not run on a GPU yet; TERNGRAD_KERNELS=native takes them"


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
      wanted: one of `CHOICES`; "" = native ones on CPUs if possible.
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
    if on_gpu and not wanted:
        return Choice(ReferenceKernels(_best_packing(path), on_gpu), _UNTRIED)
    try:
        return Choice(GpuKernels(path) if on_gpu else NativeKernels(path))
    except library.UnavailableError as error:
        if wanted or path:
            name = "TERNGRAD_KERNELS=native" if on_gpu or not path else f"TERNGRAD_SIMD={path}"
            raise ValueError(f"{name}: {error}") from None
        return Choice(ReferenceKernels(), str(error))


def _best_packing(path: str) -> Packing:
    """Returns what packs codes of gradients on GPUs."""
    try:
        return NativePacking(path)
    except library.UnavailableError:
        return ReferencePacking()
