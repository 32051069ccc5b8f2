"""The library of compiled ops: its path, its checksum, and loading it if it fits TensorFlow."""

from __future__ import annotations

import ctypes
import functools
import glob
import hashlib
import os
import platform
from types import ModuleType

FOLDER = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(FOLDER))

# Every operation rounds once, on every processor: no contraction to fused multiply-adds.
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-ffp-contract=off", "-fvisibility=hidden", "-DNDEBUG", "-w")

PATHS = ("avx512", "avx2", "portable")  # instruction sets of the library, the fastest first

_PREFIX, _SUFFIX = "kernels-tf", ".so"
_SEAL_BYTES = hashlib.sha256().digest_size


class UnavailableError(RuntimeError):
    """There is no library for this TensorFlow; the message says why and how to get one."""


def sources(*parts: str) -> list[str]:
    """Returns the files of `terngrad/cc` without tests, relative to the repository."""
    found = glob.glob(os.path.join("terngrad", "cc", *parts), root_dir=ROOT)
    return sorted(path for path in found if not path.endswith("_test.cc"))


def path_for(version: str, folder: str = FOLDER) -> str:
    """Returns the library's path for a TensorFlow version, these sources and this processor kind.

    Ops work only with the TensorFlow they were compiled against. A library of old sources could
    give other numbers than the new library of another worker.
    """
    return os.path.join(folder, f"{_PREFIX}{version}-{_fingerprint()}{_SUFFIX}")


def find(version: str, folder: str = FOLDER) -> str:
    """Returns the path of the library to load for a TensorFlow version.

    That is Bazel's, which only programs that Bazel built have beside them: Bazel builds it again
    when sources change. Else it is `path_for`'s.
    """
    built_by_bazel = os.path.join(folder, f"{_PREFIX}{version}-bazel{_SUFFIX}")
    return built_by_bazel if os.path.exists(built_by_bazel) else path_for(version, folder)


def seal(path: str) -> None:
    """Appends a checksum to a library; loaders ignore bytes after its sections."""
    with open(path, "rb+") as file:
        content = file.read()
        file.write(hashlib.sha256(content).digest())
        file.flush()
        os.fsync(file.fileno())


def is_whole(path: str) -> bool:
    """Whether a library exists and has its checksum: a truncated one would crash the process."""
    if not os.path.exists(path):
        return False
    with open(path, "rb") as file:
        content = file.read()
    return hashlib.sha256(content[:-_SEAL_BYTES]).digest() == content[-_SEAL_BYTES:]


def others(path: str) -> list[str]:
    """Returns the other libraries in the folder of `path`."""
    folder = glob.escape(os.path.join(os.path.dirname(path), _PREFIX))
    return sorted(set(glob.glob(f"{folder}*{_SUFFIX}")) - {path})


@functools.cache
def load(folder: str = FOLDER) -> ModuleType:
    """Returns the Python functions of the native ops.

    Raises:
      UnavailableError: the library was not built, was built for another TensorFlow or from other
        sources, or is damaged.
    """
    import tensorflow as tf  # not at the top: the build and setup.py run without it

    path = find(tf.version.VERSION, folder)
    remedy = "`python -m terngrad.ops.build` builds them"
    if not os.path.exists(path):
        raise UnavailableError(f"{_why_missing(tf.version.VERSION, path)}; {remedy}")
    if not is_whole(path):
        raise UnavailableError(f"{path} is damaged: native kernels cannot be loaded; {remedy}")
    try:
        return tf.load_op_library(path)
    except (tf.errors.OpError, OSError, RuntimeError) as error:
        first = str(getattr(error, "message", error)).splitlines()[0]
        raise UnavailableError(f"{path} cannot be loaded: {first}; {remedy}") from None


class Planes(ctypes.Structure):
    """A bucket of codes or of their sums: `Planes` of cc/lib/kernels.h."""

    _fields_ = (("words", ctypes.c_void_p), ("planes", ctypes.c_int))


_INT, _LONG, _TEXT = ctypes.c_int, ctypes.c_int64, ctypes.c_char_p
_SIGNATURES = {  # the result, then the arguments
    "terngrad_sum": (
        *(ctypes.c_bool, _TEXT, ctypes.POINTER(Planes)),
        *(_LONG, _INT, _LONG, ctypes.c_void_p),
    ),
    "terngrad_mesh_new": (_LONG, _INT, _TEXT),
    "terngrad_mesh_add": (None, _LONG, _INT, _INT),
    "terngrad_mesh_start": (None, _LONG),
    "terngrad_mesh_declare": (
        *(_INT, _LONG, _TEXT, _INT, _LONG, _INT, _INT),
        *(_TEXT, _TEXT, _LONG),
    ),
    "terngrad_mesh_bytes": (None, _LONG, ctypes.POINTER(_LONG)),
    "terngrad_mesh_close": (None, _LONG, ctypes.c_double),
}


@functools.cache
def load_functions(folder: str = FOLDER) -> ctypes.CDLL:
    """Returns the functions of cc/lib/functions.cc and cc/net/meshes.cc, which need no tensors.

    Raises:
      UnavailableError: see `load`.
    """
    import tensorflow as tf  # not at the top: the build and setup.py run without it

    load(folder)  # first: TensorFlow finds no ops in a library that is already loaded
    functions = ctypes.CDLL(find(tf.version.VERSION, folder))
    for name, (result, *arguments) in _SIGNATURES.items():
        function = getattr(functions, name)
        function.restype, function.argtypes = result, arguments
    return functions


@functools.cache
def _fingerprint() -> str:
    digest = hashlib.sha256("\0".join((platform.machine(), *FLAGS)).encode())
    for source in sources("*", "*.cc") + sources("*", "*.h"):
        digest.update(source.encode())
        with open(os.path.join(ROOT, source), "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()[:12]


def _why_missing(version: str, path: str) -> str:
    names = [os.path.basename(p)[len(_PREFIX) : -len(_SUFFIX)] for p in others(path)]
    versions = sorted({name.partition("-")[0] for name in names})
    if version in versions:
        return "native kernels are built from other sources or for another processor"
    if versions:
        built = ", ".join(versions)
        return f"native kernels are built for TensorFlow {built}, but this is TensorFlow {version}"
    return f"native kernels are not built for TensorFlow {version}"
