"""Object files of `terngrad/cc`: each source is compiled once for its text, flags and compiler.

They are kept in ~/.cache/terngrad (or $XDG_CACHE_HOME/terngrad), for all working copies of a user.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import fcntl
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence

from terngrad.ops.library import ROOT

_UNUSED_SECS = 30 * 24 * 3600  # then an object is removed
_INCLUDE = re.compile(rb'^#include "(.+)"', re.MULTILINE)
_FLAGS_OF_FILE = {
    "kernels_avx512.cc": ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mbmi", "-mbmi2"),
    "kernels_avx2.cc": ("-mavx2", "-mbmi", "-mbmi2"),
}


class BuildError(RuntimeError):
    """The build failed; the message says what is missing or quotes the compiler."""


def flags_of(source: str, machine: str = "") -> tuple[str, ...]:
    """Returns the flags of one file of cc/lib on a kind of processor, by default this one."""
    if (machine or platform.machine()) not in ("x86_64", "AMD64"):
        return ()
    return _FLAGS_OF_FILE.get(os.path.basename(source), ())


def compiled(
    cxx: str,
    files: Sequence[str],
    flags: Sequence[str],
    names: Mapping[str, str] | None = None,
    machine: str = "",
) -> list[str]:
    """Compiles sources in parallel, except those whose objects are there already.

    Args:
      cxx: the compiler's path.
      files: paths relative to the repository.
      flags: the flags of all files; `flags_of` adds those of one.
      names: what folders outside the repository are called in the objects. Libraries must not
        reveal the paths of the machine that compiled them, and objects do not depend on them.
      machine: the kind of processor; by default this one.

    Returns:
      The paths of the object files, in the order of `files`.

    Raises:
      BuildError: the compiler failed; the message quotes it.
    """
    names = {**(names or {}), ROOT: "."}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        one = lambda source: _object(cxx, source, [*flags, *flags_of(source, machine)], names)
        objects = list(pool.map(one, files))
    _remove_unused()
    return objects


def run(command: Sequence[str]) -> None:
    """Runs a compiler at the top of the repository.

    Raises:
      BuildError: it failed; the message is the command and what it wrote.
    """
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{' '.join(command)}\n{done.stderr.strip()}")


def _object(cxx: str, source: str, flags: Sequence[str], names: Mapping[str, str]) -> str:
    path = os.path.join(_folder(), f"{_key(cxx, source, flags, names)}.o")
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be compiling it
        if os.path.exists(path):
            os.utime(path)
            return path
        maps = [f"-ffile-prefix-map={folder}={name}" for folder, name in names.items()]
        run([cxx, *flags, *maps, "-I.", "-c", source, "-o", f"{path}.unfinished"])
        os.replace(f"{path}.unfinished", path)
    return path


def _key(cxx: str, source: str, flags: Sequence[str], names: Mapping[str, str]) -> str:
    """Returns a name for an object: a digest of all that decides its content."""
    text = "\0".join([*_identity(cxx), source, *flags])
    for folder, name in names.items():
        text = text.replace(folder, name)
    digest = hashlib.sha256(text.encode())
    for path, content in sorted(texts(source).items()):
        digest.update(f"\0{path}\0".encode() + content)
    return f"{os.path.basename(source)}-{digest.hexdigest()[:32]}"


def texts(source: str) -> dict[str, bytes]:
    """Returns a source and all files of the repository that it includes, by their paths.

    Args:
      source: path relative to the repository.
    """
    found: dict[str, bytes] = {}
    waiting = [source]
    while waiting:
        path = waiting.pop()
        if path not in found and os.path.exists(os.path.join(ROOT, path)):
            with open(os.path.join(ROOT, path), "rb") as file:
                found[path] = file.read()
            waiting += map(bytes.decode, _INCLUDE.findall(found[path]))
    return found


def _identity(cxx: str) -> tuple[str, ...]:
    """Returns what tells a compiler from another version of it."""
    path = os.path.realpath(cxx)
    status = os.stat(path)
    return platform.machine(), cxx, path, str(status.st_size), str(status.st_mtime_ns)


def _folder() -> str:
    return _made(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))


@functools.cache
def _made(home: str) -> str:
    """Returns our folder in a user's cache; where it cannot be written, one of this process."""
    folder = os.path.join(home, "terngrad")
    try:
        os.makedirs(folder, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    folder = tempfile.mkdtemp(prefix="terngrad-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _remove_unused() -> None:
    """Removes what was used for the last time long ago."""
    with os.scandir(_folder()) as entries:
        for entry in entries:
            try:
                if time.time() - entry.stat().st_mtime > _UNUSED_SECS:
                    os.remove(entry.path)
            except FileNotFoundError:  # another process removed it
                continue
