"""Compiles the native ops against the installed TensorFlow, and the library for arrays.

python -m terngrad.ops.build

With --arrays it compiles only the latter, which needs no TensorFlow. Each source of `terngrad/cc`
is compiled once for its text, flags and compiler. The object files are kept in ~/.cache/terngrad
(or $XDG_CACHE_HOME/terngrad), for all working copies of a user.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import fcntl
import functools
import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence

from terngrad.ops import library
from terngrad.ops.library import FLAGS, ROOT, sources


def compiler() -> str | None:
    """Returns the C++ compiler: $CXX if set, else g++ or clang++; None if none is found."""
    chosen = os.environ.get("CXX")
    return shutil.which(chosen) if chosen else shutil.which("g++") or shutil.which("clang++")


def build(folder: str = library.FOLDER, force: bool = False) -> str:
    """Compiles and links the libraries into `folder`, unless they are there and `force` is False.

    Returns:
      The path of the library with the ops.

    Raises:
      BuildError: there is no compiler or no TensorFlow, `folder` is read-only, or compiling failed.
    """
    installed = _installed_version()
    present = [library.arrays_path(folder), library.path_for(installed or "", folder)]
    if not force and installed and all(map(library.is_whole, present)):
        return present[-1]
    _build_arrays(folder)
    cxx = _compiler_for(folder)
    version, compile_flags, link_flags = tensorflow()
    include = next(flag[2:] for flag in compile_flags if flag.startswith("-I"))
    mesh = compiled(cxx, sources("net", "*.cc"), FLAGS)
    ops = compiled(
        cxx,
        sources("kernels", "all.cc") + sources("ops", "all.cc"),
        [*compile_flags, *FLAGS],
        {include: f"tensorflow-{version}"},
    )
    output = library.path_for(version, folder)
    _link(cxx, [*_arithmetic(cxx), *mesh, *ops], link_flags, output)
    for old in library.others(output):
        if os.path.basename(old).startswith(f"kernels-tf{version}-"):
            os.remove(old)
    return output


def _build_arrays(folder: str = library.FOLDER) -> str:
    """Compiles and links the library for arrays into `folder`; it needs no TensorFlow.

    Returns:
      The path of the library.

    Raises:
      BuildError: there is no compiler, `folder` is read-only, or compiling failed.
    """
    cxx, arrays = _compiler_for(folder), library.arrays_path(folder)
    _link(cxx, _arithmetic(cxx), ["-ldl"], arrays)
    for old in library.others(arrays):
        os.remove(old)
    return arrays


def _compiler_for(folder: str) -> str:
    """Returns the compiler; raises BuildError if there is none, or the folder is not writable."""
    if not (cxx := compiler()):
        chosen = os.environ.get("CXX")
        missing = f"CXX={chosen} is not found" if chosen else "no C++ compiler"
        raise BuildError(f"{missing}: install g++ (Debian: apt-get install -y g++)")
    if not os.access(folder, os.W_OK):
        raise BuildError(f"{folder} is not writable")
    return cxx


def _arithmetic(cxx: str) -> list[str]:
    files = [path for folder in library.ARRAY_FOLDERS for path in sources(folder, "*.cc")]
    return compiled(cxx, files, FLAGS)


def _link(cxx: str, objects: Sequence[str], link_flags: Sequence[str], output: str) -> None:
    """Links objects into a sealed library; an interrupted build leaves none behind."""
    folder = os.path.dirname(output)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=folder) as unfinished:
        linked = os.path.join(unfinished, "kernels.so")
        run([cxx, "-shared", "-s", *objects, *link_flags, "-o", linked])
        library.seal(linked)
        os.replace(linked, output)


def _installed_version() -> str | None:
    """Returns the version that `tensorflow` reports, without taking seconds to import it."""
    for name in ("tensorflow-cpu", "tensorflow"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


@functools.cache
def tensorflow() -> tuple[str, list[str], list[str]]:
    """Returns version, compiler and linker flags of the TensorFlow that programs will import.

    Asks a separate process: the isolated build of a package does not see installed packages.

    Raises:
      BuildError: TensorFlow is not installed or cannot be loaded.
    """
    command = "import tensorflow as tf; s = tf.sysconfig; " + (
        "print(tf.version.VERSION, *s.get_compile_flags(), '', *s.get_link_flags(), sep='\\n')"
    )
    inherited = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3")
    alone = {name: value for name, value in inherited.items() if name != "PYTHONPATH"}
    for environment in (alone, inherited):
        asked = subprocess.run(
            [sys.executable, "-c", command],
            env=environment,
            cwd=os.path.abspath(os.sep),
            capture_output=True,
            text=True,
            check=False,
        )
        if asked.returncode == 0:
            version, *flags = asked.stdout.splitlines()
            split = flags.index("")
            return version, flags[:split], flags[split + 1 :]
    last = asked.stderr.strip().splitlines()[-1:] or [""]
    if "No module named 'tensorflow'" in last[0]:
        raise BuildError("TensorFlow is not installed: pip install '.[cpu]', or '.[gpu]'")
    raise BuildError(f"TensorFlow cannot be loaded: {last[0]}")


def main() -> None:
    """Builds the libraries; exits with the reason if it cannot.

    With --if-needed it builds only if one is missing, with --arrays only that for arrays.
    """
    jobs = {
        (): functools.partial(build, force=True),
        ("--if-needed",): build,
        ("--arrays",): _build_arrays,
    }
    if not (job := jobs.get(tuple(sys.argv[1:]))):
        sys.exit("usage: python -m terngrad.ops.build [--if-needed | --arrays]")
    try:
        print(f"Native kernels: {os.path.relpath(job())}")
    except BuildError as error:
        sys.exit(f"build: {error}")


_UNUSED_SECS = 30 * 24 * 3600  # then a file of the cache is removed
_ENDINGS = (".o", ".o.lock", ".o.unfinished", ".bin")  # of the cache's files
UNFINISHED = ".unfinished-"  # begins the names of GPU kernels that are being written
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
      names: replacements in the objects for the paths of folders outside the repository, so that
        objects neither depend on nor reveal where they were compiled.
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
    path = os.path.join(_cache_folder(), f"{_key(cxx, source, flags, names)}.o")
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
    """Returns what identifies a version of a compiler."""
    path = os.path.realpath(cxx)
    status = os.stat(path)
    return platform.machine(), cxx, path, str(status.st_size), str(status.st_mtime_ns)


def _cache_folder() -> str:
    return _make_folder(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))


@functools.cache
def _make_folder(home: str) -> str:
    """Makes terngrad's folder in a user's cache; where it cannot be written, a temporary one."""
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
    """Removes the cache's objects and GPU kernels that were not used for 30 days."""
    with os.scandir(_cache_folder()) as entries:
        for entry in entries:
            # Another process may have removed it, or it is another user's.
            with contextlib.suppress(OSError):
                if _is_cached(entry) and time.time() - entry.stat().st_mtime > _UNUSED_SECS:
                    os.remove(entry.path)


def _is_cached(entry: os.DirEntry[str]) -> bool:
    """Returns whether an entry is a file that this module or terngrad/gpu/kernels.py writes."""
    named = entry.name.endswith(_ENDINGS) or entry.name.startswith(UNFINISHED)
    return named and entry.is_file(follow_symlinks=False)


if __name__ == "__main__":
    main()
