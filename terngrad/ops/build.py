"""Compiles the native ops against the installed TensorFlow, and the library for arrays.

python -m terngrad.ops.build

With --arrays only the latter, which needs no TensorFlow.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from terngrad.ops import library
from terngrad.ops.library import FLAGS, sources
from terngrad.ops.objects import BuildError, compiled, run


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
    build_arrays(folder)
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


def build_arrays(folder: str = library.FOLDER) -> str:
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
    """Returns the compiler of libraries in a folder."""
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
        ("--arrays",): build_arrays,
    }
    if not (job := jobs.get(tuple(sys.argv[1:]))):
        sys.exit("usage: python -m terngrad.ops.build [--if-needed | --arrays]")
    try:
        print(f"Native kernels: {os.path.relpath(job())}")
    except BuildError as error:
        sys.exit(f"build: {error}")


if __name__ == "__main__":
    main()
