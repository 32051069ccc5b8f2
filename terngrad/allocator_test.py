"""Whether freed memory is kept or given back, and which settings stay as the user made them."""

import os
import platform
import subprocess
import sys

import pytest

from terngrad import allocator
from terngrad.testing.limits import HANG_SECS

needs_glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="other libraries stay as they are"
)

# Page faults while memory for a message is allocated and freed 800 times.
FAULTS = """
import resource, sys
from terngrad import allocator
if sys.argv[1] == "keep":
    assert allocator.keep_freed()
take = lambda: [bytes(1 << 20) for _ in range(4)]
take()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(200):
    take()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how):
    command = [sys.executable, "-c", FAULTS, how]
    plain = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    plain.pop("GLIBC_TUNABLES", None)
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=HANG_SECS, check=True, env=plain
    )
    return int(done.stdout)


@needs_glibc
def test_kept_memory_is_not_requested_again():
    assert 10 * faults("keep") < faults("do not")


def test_a_setting_of_the_user_stays():
    given = {"MALLOC_ARENA_MAX": "4", "GLIBC_TUNABLES": "glibc.malloc.trim_threshold=4096"}
    assert allocator.wanted(given) == {"MALLOC_MMAP_MAX_": (-4, 0)}


@pytest.fixture(name="pages")
def _pages(tmp_path):
    path = tmp_path / "enabled"
    path.write_text("always [madvise] never\n")
    return str(path)


@needs_glibc
@pytest.mark.parametrize(
    ("tunables", "expected"),
    [
        (None, "glibc.malloc.hugetlb=1"),
        ("glibc.malloc.check=0", "glibc.malloc.check=0:glibc.malloc.hugetlb=1"),
        ("glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=0"),
    ],
)
def test_huge_pages_are_asked_for_unless_the_user_has_decided(pages, tunables, expected):
    given = {"A": "b"} | ({"GLIBC_TUNABLES": tunables} if tunables else {})
    assert allocator.with_huge_pages(given, pages) == {"A": "b", "GLIBC_TUNABLES": expected}


@pytest.mark.parametrize("said", ["[always] madvise never", "always madvise [never]", None])
def test_huge_pages_are_not_asked_for_where_all_have_them_or_none(tmp_path, said):
    path = tmp_path / "enabled"
    if said:
        path.write_text(said)
    assert allocator.with_huge_pages({"A": "b"}, str(path)) == {"A": "b"}


# A program that starts anew must not do so for ever, and keeps its arguments and process.
PROGRAM = """
import os, sys
from terngrad import allocator
allocator._PAGES, sys.executable, *_ = sys.argv[1:]
allocator.with_huge_pages.__defaults__ = (sys.argv[1],)
print(os.getpid())
allocator.restart_with_huge_pages()
print(os.environ.get("GLIBC_TUNABLES"), sys.argv[3:])
"""


def lines_of(program, pages, executable=sys.executable, **more):
    environment = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES"}
    return subprocess.run(
        [sys.executable, str(program), pages, str(executable), "--flag=1"],
        capture_output=True, text=True, timeout=HANG_SECS, check=True,
        env=environment | {"PYTHONPATH": os.pathsep.join(sys.path)}, **more,
    ).stdout.splitlines()  # fmt: skip


@pytest.fixture(name="script")
def _script(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


@needs_glibc
def test_a_program_starts_anew_once_as_the_same_process(pages, script):
    first, second, last = lines_of(script, pages)
    assert first == second
    assert last == "glibc.malloc.hugetlb=1 ['--flag=1']"


@needs_glibc
def test_a_program_starts_anew_once_even_if_the_setting_gets_lost(pages, script, tmp_path):
    python = tmp_path / "python"  # as one with capabilities does
    python.write_text(f'#!/bin/sh\nunset GLIBC_TUNABLES\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    assert lines_of(script, pages, python)[2:] == ["None ['--flag=1']"]


def test_a_program_from_a_pipe_or_without_an_interpreter_goes_on_as_it_is(pages, script):
    for lines in (lines_of("-", pages, input=PROGRAM), lines_of(script, pages, "/none")):
        assert lines[1:] == ["None ['--flag=1']"]


# Megabytes that stay in memory after 200 have been freed, and the last block is still in use.
LEFT = """
from terngrad import allocator
assert allocator.keep_freed()
held = [b"x" * (1 << 20) for _ in range(200)]
del held[:-1]
freed = allocator.FreedMemory()
freed.give_back_if_fewer(2)
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 >> 20
before = resident()
freed.give_back_if_fewer(2)
assert resident() == before
freed.give_back_if_fewer(1)
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
    whole = allocator.max_pushed_bytes(str(tmp_path))
    assert whole > 1 << 20
    (tmp_path / path).write_text(said)
    assert allocator.max_pushed_bytes(str(tmp_path)) == (2048 if said == "4096\n" else whole)
