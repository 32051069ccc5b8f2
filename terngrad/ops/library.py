"""The libraries of compiled code: their paths, their checksums, and loading them.

The one with TensorFlow's ops must fit TensorFlow. The one for arrays needs no TensorFlow.
"""

from __future__ import annotations

import ctypes
import functools
import glob
import hashlib
import os
import platform
from collections.abc import Mapping, Sequence
from types import ModuleType

FOLDER = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(FOLDER))

# Every operation rounds once, on every processor: no contraction to fused multiply-adds.
FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-ffp-contract=off",
    "-fno-math-errno",  # roots without a call
    "-fvisibility=hidden",
    "-DNDEBUG",
    "-w",
)

PATHS = ("avx512", "avx2", "portable")  # instruction sets of the library, the fastest first

ARRAY_FOLDERS = ("lib", "gpu")  # of the sources of the library for arrays
_PREFIX, _ARRAYS_PREFIX, _SUFFIX = "kernels-tf", "arrays-", ".so"
_REMEDY = "`python -m terngrad.ops.build` builds them"


class UnavailableError(RuntimeError):
    """Native code cannot be used here; the message says why and, if possible, what to do."""


def sources(*parts: str) -> list[str]:
    """Returns the files of `terngrad/cc` without those for tests, relative to the repository."""
    found = glob.glob(os.path.join("terngrad", "cc", *parts), root_dir=ROOT, recursive=True)
    is_for_tests = lambda path: path.endswith("_test.cc") or "testing" in path.split(os.sep)
    return sorted(path for path in found if not is_for_tests(path))


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


def arrays_path(folder: str = FOLDER) -> str:
    """Returns the path of the library for arrays, of these sources and this processor kind."""
    built_by_bazel = os.path.join(folder, f"{_ARRAYS_PREFIX}bazel{_SUFFIX}")
    if os.path.exists(built_by_bazel):
        return built_by_bazel
    return os.path.join(folder, f"{_ARRAYS_PREFIX}{_fingerprint(*ARRAY_FOLDERS)}{_SUFFIX}")


def checksum(content: bytes) -> bytes:
    """Returns what follows the content of a sealed file; see `unsealed`."""
    return hashlib.sha256(content).digest()


def unsealed(file: bytes) -> bytes | None:
    """Returns the content of a sealed file; None if the file is not whole."""
    size = hashlib.sha256().digest_size
    content, found = file[:-size], file[-size:]
    return content if checksum(content) == found else None


def seal(path: str) -> None:
    """Appends a checksum to a library; loaders ignore bytes after its sections."""
    with open(path, "rb+") as file:
        file.write(checksum(file.read()))
        file.flush()
        os.fsync(file.fileno())


def is_whole(path: str) -> bool:
    """Whether a library exists and has its checksum: a truncated one would crash the process."""
    if not os.path.exists(path):
        return False
    with open(path, "rb") as file:
        return unsealed(file.read()) is not None


def others(path: str) -> list[str]:
    """Returns the other libraries of the same kind in the folder of `path`."""
    folder, name = os.path.split(path)
    prefix = _ARRAYS_PREFIX if name.startswith(_ARRAYS_PREFIX) else _PREFIX
    found = glob.glob(f"{glob.escape(os.path.join(folder, prefix))}*{_SUFFIX}")
    return sorted(set(found) - {path})


@functools.cache
def load(folder: str = FOLDER) -> ModuleType:
    """Returns the Python functions of the native ops.

    Raises:
      UnavailableError: the library was not built, was built for another TensorFlow or from other
        sources, or is damaged.
    """
    import tensorflow as tf  # not at the top: the build and setup.py run without it

    path = find(tf.version.VERSION, folder)
    if not os.path.exists(path):
        raise UnavailableError(f"{_why_missing(tf.version.VERSION, path)}; {_REMEDY}")
    if not is_whole(path):
        raise UnavailableError(f"{path} is damaged: native kernels cannot be loaded; {_REMEDY}")
    try:
        return tf.load_op_library(path)
    except (tf.errors.OpError, OSError, RuntimeError) as error:
        first = str(getattr(error, "message", error)).splitlines()[0]
        raise UnavailableError(f"{path} cannot be loaded: {first}; {_REMEDY}") from None


class Planes(ctypes.Structure):
    """A bucket of codes or of their sums: `Planes` of cc/lib/kernels.h."""

    _fields_ = (("words", ctypes.c_void_p), ("planes", ctypes.c_int))


PADDING = 15  # numbers that follow those of a variable's parts: kPartsPadding


class Parts(ctypes.Structure):
    """The parts of a variable: `Parts` of cc/lib/kernels.h."""

    _fields_ = (("block", ctypes.c_int64), ("count", ctypes.c_int64), ("first", ctypes.c_int64))


class Source(ctypes.Structure):
    """A variable's gradient and how to encode it: `Source` of cc/lib/kernels.h."""

    _fields_ = (
        ("values", ctypes.c_void_p),
        ("size", ctypes.c_int64),
        ("first", ctypes.c_int64),
        ("variable", ctypes.c_uint32),
        ("parts", Parts),
        ("bounds", ctypes.c_void_p),
        ("rates", ctypes.c_void_p),
    )


class Target(ctypes.Structure):
    """Memory for a variable's mean gradient: `Target` of cc/lib/kernels.h."""

    _fields_ = (
        ("values", ctypes.c_void_p),
        ("size", ctypes.c_int64),
        ("parts", Parts),
        ("units", ctypes.c_void_p),
    )


class Kept(ctypes.Structure):
    """A variable's values and memory for the rounding error: `Kept` of cc/lib/kernels.h."""

    _fields_ = (
        ("values", ctypes.c_void_p),
        ("residuals", ctypes.c_void_p),
        ("size", ctypes.c_int64),
        ("parts", Parts),
        ("units", ctypes.c_void_p),
    )


class Trained(ctypes.Structure):
    """A variable that is trained: `Trained` of cc/lib/kernels.h."""

    _fields_ = (
        ("weights", ctypes.c_void_p),
        ("slots", ctypes.c_void_p * 2),
        ("averages", ctypes.c_void_p),
        ("size", ctypes.c_int64),
        ("parts", Parts),
        ("units", ctypes.c_void_p),
    )


RULES = ("momentum", "keras_momentum", "nesterov", "adam", "rmsprop")  # Rule of cc/lib/kernels.h


class Update(ctypes.Structure):
    """How means change weights: `Update` of cc/lib/kernels.h."""

    _fields_ = (
        ("rule", ctypes.c_int),  # index in RULES
        ("rate", ctypes.c_float),
        ("momentum", ctypes.c_float),
        ("mean_share", ctypes.c_float),
        ("square_share", ctypes.c_float),
        ("epsilon", ctypes.c_float),
        ("gain", ctypes.c_float),
    )


class NodeKey(ctypes.Structure):
    """The seed, step and node of the draws: `NodeKey` of cc/lib/kernels.h."""

    _fields_ = (
        ("seed", ctypes.c_uint64),
        ("step", ctypes.c_uint32),
        ("node", ctypes.c_uint32),
        ("antithetic", ctypes.c_bool),
    )


_TEXT, _POINTER, _COUNT = ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64
_SIGNATURES = {  # of cc/lib/functions.cc: the result, then the arguments
    "terngrad_paths": (_TEXT,),
    "terngrad_stats": (
        *(ctypes.c_bool, _TEXT, _POINTER, _COUNT),
        *(ctypes.POINTER(Parts), _POINTER, _POINTER, _POINTER),
    ),
    "terngrad_encode": (
        *(ctypes.c_bool, _TEXT, _TEXT, ctypes.POINTER(Source), _COUNT),
        *(ctypes.POINTER(NodeKey), _COUNT, _POINTER),
    ),
    "terngrad_sum": (
        *(ctypes.c_bool, _TEXT, ctypes.POINTER(Planes)),
        *(_COUNT, ctypes.c_int, _COUNT, _POINTER),
    ),
    "terngrad_pack": (_COUNT, _TEXT, _POINTER, ctypes.c_int, _COUNT, _POINTER),
    "terngrad_unpack": (
        *(ctypes.c_bool, _TEXT, _POINTER, _COUNT),
        *(ctypes.c_int, _COUNT, _POINTER),
    ),
    "terngrad_decode": (
        *(ctypes.c_bool, _TEXT, ctypes.POINTER(Planes)),
        *(ctypes.POINTER(Target), _COUNT, _COUNT),
    ),
    "terngrad_subtract": (
        *(ctypes.c_bool, _TEXT, ctypes.POINTER(Planes)),
        *(ctypes.POINTER(Kept), _COUNT, _COUNT),
    ),
    "terngrad_update": (
        *(ctypes.c_bool, _TEXT, ctypes.POINTER(Planes)),
        *(ctypes.POINTER(Trained), _COUNT, ctypes.POINTER(Update), _COUNT),
    ),
}
_MESH_SIGNATURES = {  # of cc/net/mesh_registry.cc
    "terngrad_mesh_new": (_COUNT, ctypes.c_int, _TEXT),
    "terngrad_mesh_add": (None, _COUNT, ctypes.c_int, ctypes.c_int),
    "terngrad_mesh_add_encrypted": (None, _COUNT, ctypes.c_int, _POINTER),
    "terngrad_mesh_start": (None, _COUNT),
    "terngrad_mesh_declare": (
        *(ctypes.c_int, _COUNT, _TEXT, ctypes.c_int, _COUNT, _COUNT, _COUNT),
        *(_TEXT, _TEXT, _COUNT),
    ),
    "terngrad_mesh_bytes": (None, _COUNT, ctypes.POINTER(_COUNT)),
    "terngrad_mesh_fail": (None, _COUNT, _TEXT),
    "terngrad_mesh_end": (None, _COUNT, ctypes.c_double),
    "terngrad_mesh_failure": (ctypes.c_int, _COUNT, _TEXT, _COUNT),
    "terngrad_mesh_replace": (None, _COUNT, _COUNT),
    "terngrad_mesh_close": (None, _COUNT, ctypes.c_double),
    "terngrad_tls_open": (
        *(_COUNT, ctypes.c_int, _TEXT, _TEXT, _TEXT, _TEXT, ctypes.c_int, ctypes.c_double),
        *(ctypes.POINTER(_POINTER), _POINTER, _COUNT, _TEXT, _COUNT),
    ),
    "terngrad_tls_close": (None, _POINTER),
}


@functools.cache
def load_functions() -> ctypes.CDLL:
    """Returns cc/lib/functions.cc and cc/net/mesh_registry.cc, whose functions need no tensors.

    Raises:
      UnavailableError: see `load`.
    """
    import tensorflow as tf  # not at the top: the build and setup.py run without it

    load()  # first: TensorFlow finds no ops in a library that is already loaded
    functions = ctypes.CDLL(find(tf.version.VERSION))
    return declared(functions, _SIGNATURES | _MESH_SIGNATURES)


@functools.cache
def load_arrays(folder: str = FOLDER) -> ctypes.CDLL:
    """Returns the functions of cc/lib/functions.cc from a library that needs no TensorFlow.

    Raises:
      UnavailableError: the library was not built, was built from other sources, or is damaged.
    """
    path = arrays_path(folder)
    if not os.path.exists(path):
        stale = others(path)
        how = "built from other sources or for another processor" if stale else "not built"
        raise UnavailableError(f"native functions for arrays are {how}; {_REMEDY}")
    if not is_whole(path):
        raise UnavailableError(f"{path} is damaged: it cannot be loaded; {_REMEDY}")
    try:
        return declared(ctypes.CDLL(path), _SIGNATURES)
    except OSError as error:
        raise UnavailableError(f"{path} cannot be loaded: {error}; {_REMEDY}") from None


def declared(functions: ctypes.CDLL, signatures: Mapping[str, Sequence]) -> ctypes.CDLL:
    """Declares the types of some functions to ctypes."""
    for name, (result, *arguments) in signatures.items():
        function = getattr(functions, name)
        function.restype, function.argtypes = result, arguments
    return functions


def choose_path(functions: ctypes.CDLL, wanted: str = "") -> str:
    """Returns the instruction set to compute with: `wanted`, or "" for the fastest here.

    Raises:
      ValueError: the library or this processor does not have it.
    """
    paths = functions.terngrad_paths().decode().split(", ")
    if wanted and wanted not in paths:
        raise ValueError(f"TERNGRAD_SIMD: path is {wanted!r}; allowed are {', '.join(paths)}")
    return wanted or paths[0]


@functools.cache
def _fingerprint(*folders: str) -> str:
    """Returns a digest of the sources in some folders of terngrad/cc, by default in all."""
    digest = hashlib.sha256("\0".join((platform.machine(), *FLAGS)).encode())
    parts = [(folder, "**", kind) for folder in folders or ("*",) for kind in ("*.cc", "*.h")]
    for source in [source for part in parts for source in sources(*part)]:
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
