"""Compiles the native ops against the installed TensorFlow.

python -m terngrad.ops.build
"""

from __future__ import annotations

import concurrent.futures
import functools
import glob
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from terngrad.ops import library

ROOT = os.path.dirname(os.path.dirname(library.FOLDER))
SOURCES = os.path.join(ROOT, "terngrad", "cc")

# Every operation rounds once, on every processor: no contraction to fused multiply-adds.
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-ffp-contract=off", "-fvisibility=hidden", "-DNDEBUG", "-w")
_FLAGS_OF_FILE = {
    "kernels_avx512.cc": ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mbmi"),
    "kernels_avx2.cc": ("-mavx2", "-mbmi"),
}


class BuildError(RuntimeError):
    """One line that says what is missing, or the compiler's own words."""


def compiler() -> str | None:
    """The C++ compiler: $CXX, g++ or clang++; None if there is none."""
    return shutil.which(os.environ.get("CXX", "")) or shutil.which("g++") or shutil.which("clang++")


def sources(*parts: str) -> list[str]:
    """Files of `terngrad/cc` without tests, relative to the repository."""
    found = glob.glob(os.path.join("terngrad", "cc", *parts), root_dir=ROOT)
    return sorted(path for path in found if not path.endswith("_test.cc"))


def flags_of(source: str) -> tuple[str, ...]:
    """What a file of cc/lib needs beyond `FLAGS` on this processor's family."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return ()
    return _FLAGS_OF_FILE.get(os.path.basename(source), ())


def build(folder: str = library.FOLDER, force: bool = False) -> str:
    """Compiles and links the library into `folder`, unless it is there and newer than its sources.

    Returns:
      The library's path.

    Raises:
      BuildError: no compiler, no TensorFlow, or what the compiler says.
    """
    installed = _installed_version()
    if not force and installed and _is_current(library.path_for(installed, folder)):
        return library.path_for(installed, folder)
    cxx = compiler()
    if not cxx:
        raise BuildError("no C++ compiler: install g++ (Debian: apt-get install -y g++)")
    version, compile_flags, link_flags = tensorflow()
    output = library.path_for(version, folder)
    # Where files lay while they were compiled is nobody's business.
    include = next(flag[2:] for flag in compile_flags if flag.startswith("-I"))
    hidden = [f"-ffile-prefix-map={include}=include", f"-ffile-prefix-map={ROOT}=."]
    with tempfile.TemporaryDirectory(prefix="terngrad-") as scratch:
        flags = [*compile_flags, *FLAGS, *hidden, "-I."]
        jobs = [
            [cxx, *flags, *flags_of(source), "-c", source, "-o", _object_of(scratch, source)]
            for source in sources("*", "*.cc")
        ]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(_run, jobs))
        objects = [job[-1] for job in jobs]
        # Linked beside its place, so that a stopped build leaves nothing under the final name.
        unfinished = f"{output}.{os.getpid()}"
        try:
            _run([cxx, "-shared", "-s", *objects, *link_flags, "-o", unfinished])
            os.replace(unfinished, output)
        finally:
            if os.path.exists(unfinished):
                os.remove(unfinished)
    return output


def _installed_version() -> str | None:
    """What `tensorflow` says, without the seconds that it takes to say it."""
    for name in ("tensorflow-cpu", "tensorflow"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


@functools.cache
def tensorflow() -> tuple[str, list[str], list[str]]:
    """Version, compiler and linker flags of the TensorFlow that programs will import.

    Asked in a process of its own: a package's isolated build does not see what is installed.

    Raises:
      BuildError: there is none.
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
    raise BuildError("TensorFlow is not installed: pip install '.[cpu]', or '.[gpu]'")


def _is_current(output: str) -> bool:
    if not os.path.exists(output):
        return False
    files = [os.path.join(ROOT, path) for path in sources("*", "*.cc") + sources("*", "*.h")]
    return os.path.getmtime(output) > max(
        map(os.path.getmtime, [*files, os.path.abspath(__file__)])
    )


def _object_of(folder: str, source: str) -> str:
    return os.path.join(folder, os.path.basename(source) + ".o")


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{' '.join(command)}\n{done.stderr.strip()}")


def main() -> None:
    """Builds anew; with --if-needed only where sources are newer. Says why there is no library."""
    try:
        print(f"Native kernels: {os.path.relpath(build(force='--if-needed' not in sys.argv))}")
    except BuildError as error:
        sys.exit(f"build: {error}")


if __name__ == "__main__":
    main()
