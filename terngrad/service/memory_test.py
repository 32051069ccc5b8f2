"""How much memory a ps may hold, and when it gives freed memory back."""

import platform
import subprocess
import sys

import pytest

from terngrad.service import memory
from terngrad.testing.limits import HANG_SECS

# Megabytes that stay in memory after 200 have been freed, and the last block is still in use.
LEFT = """
from terngrad import allocator
from terngrad.service import memory
assert allocator.keep_freed()
held = [b"x" * (1 << 20) for _ in range(200)]
del held[:-1]
returning = memory.Returning()
returning.look(2)
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 >> 20
before = resident()
returning.look(2)
assert resident() == before
returning.look(1)
print(before, resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries stay as they are")
def test_kept_memory_is_given_back_when_a_worker_has_left():
    command = [sys.executable, "-c", LEFT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECS, check=True)
    before, after = map(int, done.stdout.split())
    assert before > 200 and after < before - 150


@pytest.mark.parametrize(("path", "said"), [("memory.max", "4096\n"), ("memory.max", "max\n")])
def test_a_ps_holds_half_of_the_memory_of_its_container(tmp_path, path, said):
    whole = memory.most_held(str(tmp_path))
    assert whole > 1 << 20
    (tmp_path / path).write_text(said)
    assert memory.most_held(str(tmp_path)) == (2048 if said == "4096\n" else whole)
