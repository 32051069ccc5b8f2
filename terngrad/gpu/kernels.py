"""The GPU kernels' code for a card, from the cache or from NVRTC.

A file of the cache holds its content and a checksum, and gets its name when it is whole. So two
processes may make the same one at once, and a crash or a full disk leaves nothing half-written
under its name. Objects of the native kernels (terngrad/ops/build.py) lie in the same folder; what
is unused for long is removed there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping

from terngrad.gpu import nvrtc
from terngrad.ops import build
from terngrad.ops.library import UnavailableError

_DIGEST_BYTES = hashlib.sha256().digest_size
SOURCE = "terngrad/cc/gpu/kernels.cu"


def folder() -> str:
    """Returns the folder, $XDG_CACHE_HOME/terngrad or ~/.cache/terngrad; it may not exist."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(home, "terngrad")


def cached(name: str, make: Callable[[], bytes]) -> bytes:
    """Returns the cached content of a name; makes and caches it if it is missing or damaged.

    If the folder cannot be read or written, a warning says so.

    Args:
      name: file name with a digest of all that decides the content.
      make: returns the content.
    """
    path = os.path.join(folder(), name)
    try:
        content = _read(path)
    except OSError as error:
        _warn(path, error)
        return make()
    if content is not None:
        with contextlib.suppress(OSError):  # the file of another user, which may be used, too
            os.utime(path)  # notes the use
        return content
    content = make()
    try:
        _write(path, content)
    except OSError as error:
        _warn(path, error)
    return content


def _warn(path: str, error: OSError) -> None:
    text = f"{os.path.dirname(path)}: {error.strerror or error}; each process compiles its kernels"
    warnings.warn(f"GPU kernels are not kept in {text}", RuntimeWarning, stacklevel=3)


def _read(path: str) -> bytes | None:
    """Returns a file's content; None if there is no whole file."""
    try:
        with open(path, "rb") as file:
            sealed = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    content, digest = sealed[:-_DIGEST_BYTES], sealed[-_DIGEST_BYTES:]
    return content if hashlib.sha256(content).digest() == digest else None


def _write(path: str, content: bytes) -> None:
    where = os.path.dirname(path)
    os.makedirs(where, exist_ok=True)
    descriptor, unfinished = tempfile.mkstemp(prefix=build.UNFINISHED, dir=where)
    try:
        with open(descriptor, "wb") as file:
            file.write(content + hashlib.sha256(content).digest())
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(unfinished)
        raise


def code(capability: int) -> bytes:
    """Returns the kernels' code for a card.

    Args:
      capability: the card's compute capability, such as 90 for 9.0.

    Raises:
      UnavailableError: the card is too old, or NVRTC is not found or cannot compile them.
    """
    compiler = nvrtc.load()
    target, texts = compiler.target(capability), sources()
    name = f"kernels-{target}-{_digest(texts, target, compiler.version)}.bin"
    try:
        return cached(name, lambda: compiled(compiler, target, texts).code)
    except nvrtc.CompileError as error:
        lines = str(error).splitlines()
        first = next((line for line in lines if "error" in line), lines[0])
        version = ".".join(map(str, compiler.version))
        raise UnavailableError(f"NVRTC {version} cannot compile the kernels: {first}") from None


def compiled(
    compiler: nvrtc.Nvrtc,
    target: str,
    texts: Mapping[str, str],
    options: tuple[str, ...] = nvrtc.OPTIONS,
) -> nvrtc.Compiled:
    """Returns what a compiler makes of `sources` for a target of `Nvrtc.target`."""
    headers = {name: text for name, text in texts.items() if name != SOURCE}
    return compiler.compile(texts[SOURCE], target, headers=headers, name=SOURCE, options=options)


def sources() -> dict[str, str]:
    """Returns the kernels and the package's headers that they include, by their names there."""
    return {name: content.decode() for name, content in sorted(build.texts(SOURCE).items())}


def _digest(texts: Mapping[str, str], target: str, version: nvrtc.Version) -> str:
    """Returns a digest of all that decides the code."""
    parts = [target, *map(str, version), *nvrtc.OPTIONS]
    parts += [part for name, text in texts.items() for part in (name, text)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
