"""Memory of a ps: what it may hold, and what it keeps because it soon needs as much again."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # of glibc's malloc.h
_LARGEST_KEPT = 1 << 25  # bytes of one piece of memory; glibc takes no more
_KEPT = 1 << 30  # bytes
_CGROUP_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")  # of versions 2 and 1


def most_held(root: str = "/sys/fs/cgroup") -> int:
    """Bytes that a ps may hold of what workers pushed: half of the memory that it can have.

    That is the machine's, or what the container's control group under `root` is allowed.
    """
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError), open(os.path.join(root, path)) as file:
            found.append(int(file.read()))  # "max" where there is no limit
    return min(found) // 2


def keep_freed() -> bool:
    """Lets malloc keep what is freed; returns whether it does.

    Otherwise each message gets memory from the kernel, which clears it first, and returns it: a
    quarter of what a ps computes. Other C libraries than glibc stay as they are.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda name, value: 0)
    return all([mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT), mallopt(_TRIM_THRESHOLD, _KEPT)])
