"""NVRTC, NVIDIA's compiler as a library, found at run time and called through ctypes.

It comes with `nvidia-cuda-nvrtc-cu12`, which `tensorflow[and-cuda]` and PyTorch bring, or with the
CUDA toolkit. It needs neither a GPU nor a driver.
"""

from __future__ import annotations

import ctypes
import functools
import glob
import importlib.util
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from terngrad.ops.library import UnavailableError

OLDEST = 70  # compute capability 7.0, Volta: the oldest that the kernels are compiled for in tests
# Each operation rounds once, and denormal numbers count as 0: so do the kernels for CPUs.
OPTIONS = ("--std=c++17", "--fmad=false", "--ftz=true", "--prec-div=true", "--prec-sqrt=true")

_REMEDY = "install the CUDA toolkit, or: pip install nvidia-cuda-nvrtc-cu12"
_OLDER = "install an older one: pip install nvidia-cuda-nvrtc-cu12"
_SYSTEM = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")  # that the loader finds
_FOLDERS = ("/usr/local/cuda/lib64",)


class CompileError(RuntimeError):
    """NVRTC refused a source; the message quotes it."""


class Version(NamedTuple):
    """Version of NVRTC, which is that of its CUDA toolkit."""

    major: int
    minor: int


class Compiled(NamedTuple):
    """What the driver loads, and what the compiler wrote meanwhile."""

    code: bytes
    log: str


class Nvrtc:
    """A loaded NVRTC.

    Attributes:
      path: of the library.
      version: of the library.
      architectures: compute capabilities that it makes code for, such as 90 for 9.0, ascending.
    """

    def __init__(self, path: str):
        """Loads a library.

        Raises:
          UnavailableError: it cannot be loaded, or lacks a function.
        """
        self.path = path
        try:
            self._library = ctypes.CDLL(path)
            self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
            self.version = self._version()
            self._load_builtins()
            self.architectures = self._architectures()
            self._library.nvrtcGetCUBIN  # noqa: B018 - since 11.1
        except OSError as error:
            raise UnavailableError(f"NVRTC cannot be loaded: {error}; {_REMEDY}") from None
        except AttributeError as error:
            lacks = str(error).rpartition(" ")[-1]
            raise UnavailableError(f"{path} is too old: it lacks {lacks}; {_REMEDY}") from None

    def _version(self) -> Version:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return Version(major.value, minor.value)

    def _load_builtins(self) -> None:
        """Loads what NVRTC opens by its name, as 13.0 lacks the path to its own folder."""
        folder, name = os.path.dirname(self.path), ".".join(map(str, self.version))
        path = os.path.join(folder, f"libnvrtc-builtins.so.{name}")
        if folder and os.path.exists(path):  # else the loader has to find both
            ctypes.CDLL(path)

    def _architectures(self) -> tuple[int, ...]:
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        found = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", found)
        return tuple(sorted(found))

    def target(self, capability: int) -> str:
        """Returns the architecture to compile for.

        Args:
          capability: compute capability of a card, such as 90 for 9.0.

        Returns:
          "sm_90" for code of this card; "compute_90" for PTX that the driver of a newer card
          compiles, where this NVRTC does not know the card.

        Raises:
          UnavailableError: the card is too old for the kernels or for this NVRTC.
        """
        card = f"compute capability {capability // 10}.{capability % 10}"
        if capability < OLDEST:
            least = f"{OLDEST // 10}.{OLDEST % 10}"
            raise UnavailableError(f"it has {card}; the kernels need {least} or more")
        if capability in self.architectures:
            return f"sm_{capability}"
        older = [known for known in self.architectures if known < capability]
        if not older:
            version = ".".join(map(str, self.version))
            newer = f"NVRTC {version} supports newer ones only"
            raise UnavailableError(f"it has {card}; {newer}; {_OLDER}")
        return f"compute_{older[-1]}"

    def compile(
        self,
        source: str,
        target: str,
        *,
        headers: Mapping[str, str] | None = None,
        name: str = "kernels.cu",
        options: Sequence[str] = OPTIONS,
    ) -> Compiled:
        """Compiles a source.

        Args:
          source: text in CUDA C++.
          target: see `target`.
          headers: texts by the names that the source includes them by.
          name: of the source, in messages.
          options: of the compiler.

        Raises:
          CompileError: the source has an error; the message is what NVRTC wrote.
        """
        headers = headers or {}
        texts = (ctypes.c_char_p * len(headers))(*(text.encode() for text in headers.values()))
        names = (ctypes.c_char_p * len(headers))(*(each.encode() for each in headers))
        program = ctypes.c_void_p()
        arguments = (source.encode(), name.encode(), len(headers), texts, names)
        self._call("nvrtcCreateProgram", ctypes.byref(program), *arguments)
        try:
            flags = [f"--gpu-architecture={target}".encode(), *(each.encode() for each in options)]
            compiled = self._library.nvrtcCompileProgram(
                program, len(flags), (ctypes.c_char_p * len(flags))(*flags)
            )
            if compiled:
                raise CompileError(
                    f"{name}, {target}: {self._error(compiled)}\n{self._log(program)}"
                )
            kind = "CUBIN" if target.startswith("sm_") else "PTX"
            return Compiled(self._output(program, kind), self._log(program))
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _log(self, program: ctypes.c_void_p) -> str:
        return self._output(program, "ProgramLog").rstrip(b"\0").decode(errors="replace").strip()

    def _output(self, program: ctypes.c_void_p, kind: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{kind}Size", program, ctypes.byref(size))
        content = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{kind}", program, content)
        return content.raw

    def _error(self, status: int) -> str:
        return self._library.nvrtcGetErrorString(status).decode()

    def _call(self, name: str, *arguments: object) -> None:
        if status := getattr(self._library, name)(*arguments):
            raise UnavailableError(f"{self.path}: {name}: {self._error(status)}")


@functools.cache
def load() -> Nvrtc:
    """Returns NVRTC: of a package of Python, else the system's.

    Raises:
      UnavailableError: there is none.
    """
    for path in candidates():
        if os.path.exists(path):
            return Nvrtc(path)
        try:
            ctypes.CDLL(path)
        except OSError:
            continue
        return Nvrtc(path)
    raise UnavailableError(f"NVRTC is not found; {_REMEDY}")


def candidates() -> list[str]:
    """Returns where NVRTC may be: existing files, then names that the loader may find."""
    folders = [*_package_folders(), *_toolkit_folders()]
    patterns = [f"{glob.escape(folder)}/libnvrtc.so*" for folder in folders]
    found = [path for pattern in patterns for path in sorted(glob.glob(pattern))]
    return [*found, *_SYSTEM]


def _package_folders() -> list[str]:
    """Folders of `nvidia-cuda-nvrtc-cu12`, and of `nvidia-cuda-nvrtc`, which is that of CUDA 13."""
    try:
        spec = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):
        return []
    places = map(glob.escape, (spec and spec.submodule_search_locations) or ())
    return [
        folder
        for place in places
        for pattern in ("cuda_nvrtc/lib", "cu[0-9]*/lib")
        for folder in sorted(glob.glob(os.path.join(place, pattern)))
    ]


def _toolkit_folders() -> list[str]:
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    return [*([os.path.join(home, "lib64")] if home else []), *_FOLDERS]
