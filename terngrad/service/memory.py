"""Memory of a ps: how much it may hold, and when it gives freed memory back."""

from __future__ import annotations

import contextlib
import os

from terngrad import allocator

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


class Returning:
    """Gives freed memory back to the kernel when workers have left, since few may come again."""

    def __init__(self) -> None:
        """Starts without workers."""
        self._present = 0

    def look(self, present: int) -> None:
        """Acts if fewer workers are present than at the last look."""
        if present < self._present:
            allocator.give_back()
        self._present = present
