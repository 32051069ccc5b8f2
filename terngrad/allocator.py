"""The memory of a process: how long malloc keeps what is freed, and how much a ps may hold.

Each step allocates and frees large tensors. By default malloc returns them to the kernel, which
clears them again at the next step, and takes pages of 4 KB. Here glibc's malloc keeps them, in huge
pages. Nothing here affects other allocators, and what the user's environment sets stays as it is.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import sys
from collections.abc import Mapping

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # of glibc's malloc.h
_SETTINGS = {
    # One arena: each other one would keep freed memory for its own threads.
    "MALLOC_ARENA_MAX": (_ARENA_MAX, 1),
    "MALLOC_MMAP_MAX_": (_MMAP_MAX, 0),  # blocks from the kernel that go back when they are freed
    "MALLOC_TRIM_THRESHOLD_": (_TRIM_THRESHOLD, (1 << 31) - 1),  # bytes
}
_TUNABLES = "GLIBC_TUNABLES"
_HUGE_PAGES = "glibc.malloc.hugetlb"
_PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"
_SINCE = (2, 35)  # of glibc
_MARK = "restarted"  # option -X of an interpreter that must not restart again


def keep_freed() -> bool:
    """Makes malloc keep freed memory; returns whether it does."""
    if sys.platform != "linux" or (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is None:
        return False
    return all(mallopt(*setting) for setting in wanted(os.environ).values())


def wanted(environment: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """Returns the settings that an environment leaves open: numbers of mallopt and values."""
    tunables = environment.get(_TUNABLES, "")
    is_open = lambda name: name not in environment and _tunable(name) not in tunables
    return {name: setting for name, setting in _SETTINGS.items() if is_open(name)}


def page_faults() -> int:
    """Returns the minor page faults of this process: how often it got memory from the kernel."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def give_back() -> None:
    """Gives freed memory back to the kernel."""
    if sys.platform == "linux":
        getattr(ctypes.CDLL(None), "malloc_trim", lambda pad: 0)(0)


def with_huge_pages(environment: Mapping[str, str], pages: str = _PAGES) -> dict[str, str]:
    """Returns an environment whose new processes allocate in huge pages, where malloc can.

    Args:
      environment: of this process.
      pages: the kernel's setting of huge pages: it must be "madvise", since with the others all
        processes have them, or none.
    """
    tunables = environment.get(_TUNABLES, "")
    if _HUGE_PAGES in tunables or not _on_request(pages) or _libc() < _SINCE:
        return dict(environment)
    return {**environment, _TUNABLES: ":".join(filter(None, (tunables, f"{_HUGE_PAGES}=1")))}


def restart_with_huge_pages() -> None:
    """Restarts this program in the same process, if it then has huge pages.

    malloc reads this setting only when a process starts. Call it before slow imports. A program
    that cannot be restarted, for example because it was read from a pipe, continues without.
    """
    own = sys.argv[1:]
    is_main = bool(own) and sys.orig_argv[-len(own) :] == own  # not called by another program
    can_be_read_again = os.path.isfile(sys.argv[0])
    # The loader removes the setting if the interpreter has privileges, such as capabilities.
    is_first = _MARK not in sys._xoptions
    environment = with_huge_pages(os.environ)
    if not (is_main and can_be_read_again and is_first) or environment == dict(os.environ):
        return
    if "tensorflow" not in sys.modules:
        if sys.stdout is not None:  # None: it was closed from the start
            sys.stdout.flush()
        with contextlib.suppress(OSError):
            command = [sys.executable, "-X", _MARK, *sys.orig_argv[1:]]
            os.execve(sys.executable, command, environment)


def _tunable(name: str) -> str:
    """Returns the name of a setting among the tunables."""
    return "glibc.malloc." + name.removeprefix("MALLOC_").rstrip("_").lower()


def _on_request(pages: str) -> bool:
    try:
        with open(pages, encoding="ascii") as file:
            return "[madvise]" in file.read()
    except OSError:
        return False


def _libc() -> tuple[int, ...]:
    """Returns the version of glibc; () of another C library."""
    try:
        found = re.fullmatch(r"glibc (\d+)\.(\d+).*", os.confstr("CS_GNU_LIBC_VERSION") or "")
    except (AttributeError, ValueError, OSError):
        return ()
    return tuple(map(int, found.groups())) if found else ()


_CGROUP_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")  # of versions 2 and 1


def max_pushed_bytes(root: str = "/sys/fs/cgroup") -> int:
    """Returns the bytes of pushes that a ps may hold: half of its memory.

    The memory is that of the machine or, if smaller, the limit of the container's control group
    under `root`.
    """
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError), open(os.path.join(root, path)) as file:
            found.append(int(file.read()))  # "max", a ValueError, means no limit
    return min(found) // 2


class FreedMemory:
    """What malloc keeps. It goes back to the kernel when workers leave: few may come again."""

    def __init__(self) -> None:
        """Starts without workers."""
        self._present = 0

    def give_back_if_fewer(self, present: int) -> None:
        """Gives it back if fewer workers are present than at the last call."""
        if present < self._present:
            give_back()
        self._present = present
