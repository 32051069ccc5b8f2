"""Memory of a ps: how much it may hold, and how to reuse freed memory or give it back."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # of glibc's malloc.h
_LARGEST_KEPT = 1 << 25  # bytes of one block, the most that glibc allows
_KEPT = 1 << 30  # bytes
_CGROUP_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")  # of versions 2 and 1


def most_held(root: str = "/sys/fs/cgroup") -> int:
    """Returns the bytes of pushes that a ps may hold: half of its memory.

    The memory is that of the machine or, if smaller, the limit of the container's control group
    under `root`.
    """
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError), open(os.path.join(root, path)) as file:
            found.append(int(file.read()))  # "max", a ValueError, means no limit
    return min(found) // 2


def keep_freed() -> bool:
    """Makes malloc keep freed memory; returns whether it does.

    Otherwise each message takes memory from the kernel, which clears it, and returns it: that is a
    quarter of the CPU time of a ps. It has no effect on C libraries other than glibc.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda name, value: 0)
    return all([mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT), mallopt(_TRIM_THRESHOLD, _KEPT)])


class Returning:
    """Gives freed memory back to the kernel when workers have left, since few may come again."""

    def __init__(self) -> None:
        """Starts without workers."""
        self._present = 0

    def look(self, present: int) -> None:
        """Acts if fewer workers are present than at the last look."""
        if present < self._present:
            give_back()
        self._present = present


def give_back() -> None:
    """Gives freed memory back to the kernel; has no effect on C libraries other than glibc."""
    if sys.platform == "linux":
        getattr(ctypes.CDLL(None), "malloc_trim", lambda pad: 0)(0)
