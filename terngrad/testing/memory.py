"""How much memory a part of a test needs."""

import re
from collections.abc import Callable
from pathlib import Path

from terngrad import allocator

_PROCESS = Path("/proc/self")


def peak_bytes(work: Callable[[], object]) -> int:
    """Returns by how many bytes `work` raised the resident memory of this process at its peak."""
    allocator.give_back()  # else `work` takes what was freed before
    (_PROCESS / "clear_refs").write_text("5")  # the peak begins anew
    before = _bytes("VmRSS")
    work()
    return _bytes("VmHWM") - before


def _bytes(name: str) -> int:
    return 1024 * int(re.search(rf"{name}:\s+(\d+) kB", (_PROCESS / "status").read_text())[1])
