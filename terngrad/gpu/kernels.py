"""The GPU kernels' code for a card, from the cache or from NVRTC.

A file of the cache holds its content and a checksum, and gets its name when it is whole. So two
processes may make the same one at once, and a crash or a full disk leaves nothing half-written
under its name. Objects of the native kernels (terngrad/ops/build.py) lie in the same folder; what
is unused for long is removed there.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Mapping

from terngrad.gpu import nvrtc
from terngrad.ops import build, library
from terngrad.ops.library import UnavailableError

SOURCE = "terngrad/cc/gpu/kernels.cu"


def folder() -> str:
    """Returns the folder, $XDG_CACHE_HOME/terngrad or ~/.cache/terngrad; it may not exist."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(home, "terngrad")


def cached(name: str, make: Callable[[], bytes]) -> bytes:
    """Returns the cached content of a name; makes and caches it if it is missing or damaged.

    If the folder cannot be read or written, a line on stderr says so.

    Args:
      name: file name with all that decides the content, or a digest of it.
      make: returns the content.
    """
    path = os.path.join(folder(), name)
    try:
        content = _read(path)
    except OSError as error:
        _warn(path, error)
        return make()
    if content is not None:
        return content
    content = make()
    try:
        _write(path, content)
    except OSError as error:
        _warn(path, error)
    return content


def _warn(path: str, error: OSError) -> None:
    text = f"{os.path.dirname(path)}: {error.strerror or error}; each process compiles its kernels"
    _print_once(f"GPU kernels are not kept in {text}")


@functools.cache
def _print_once(line: str) -> None:
    # Not a warning: it would name a line of this file, which the user cannot mend.
    print(line, file=sys.stderr, flush=True)


def _read(path: str) -> bytes | None:
    """Returns a file's content and notes its use; None if there is no whole file."""
    try:
        with open(path, "rb") as file:
            content = library.unsealed(file.read())
    except (FileNotFoundError, NotADirectoryError):
        return None
    if content is None:
        return None
    with contextlib.suppress(OSError):  # the file of another user, which may be used, too
        os.utime(path)
    return content


def _write(path: str, content: bytes) -> None:
    where = os.path.dirname(path)
    os.makedirs(where, exist_ok=True)
    descriptor, unfinished = tempfile.mkstemp(prefix=build.UNFINISHED, dir=where)
    try:
        with open(descriptor, "wb") as file:
            with contextlib.suppress(OSError):  # some network file systems have no modes
                os.fchmod(file.fileno(), 0o644)  # for other users of a folder that they share
            file.write(content + library.checksum(content))
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(unfinished)
        raise


def code(capability: int) -> bytes:
    """Returns the kernels' code for a card.

    Where there is no NVRTC that knows the card, code that any version has made for it will do.

    Args:
      capability: the card's compute capability, such as 90 for 9.0.

    Raises:
      UnavailableError: the card is too old, or NVRTC cannot compile them, or it is not found and
        the cache does not have them.
    """
    texts = sources()
    try:
        compiler = nvrtc.load()
        target, version = compiler.target(capability), ".".join(map(str, compiler.version))
    except UnavailableError:
        kept = _kept(capability, texts)
        if kept is None:
            raise
        return kept
    try:
        return cached(_name(target, texts, version), lambda: compiled(compiler, target, texts).code)
    except nvrtc.CompileError as error:
        lines = str(error).splitlines()
        first = next((line for line in lines if "error" in line), lines[0])
        raise UnavailableError(f"NVRTC {version} cannot compile the kernels: {first}") from None


def _kept(capability: int, texts: Mapping[str, str]) -> bytes | None:
    """Returns what the cache has for a card, whatever NVRTC made it; of several the last used."""
    # The driver turns PTX, the code for a virtual architecture, into that of a later card.
    virtual = [f"compute_{older}" for older in range(capability, nvrtc.OLDEST - 1, -1)]
    for target in (f"sm_{capability}", *virtual):
        pattern = os.path.join(glob.escape(folder()), _name(target, texts, "*"))
        with contextlib.suppress(OSError):  # another process may remove them
            paths = sorted(glob.glob(pattern), key=os.path.getmtime, reverse=True)
            kept = next((content for path in paths if (content := _read(path)) is not None), None)
            if kept is not None:
                return kept
    return None


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


def _name(target: str, texts: Mapping[str, str], version: str) -> str:
    """Returns a file name with all that decides the code."""
    parts = [*nvrtc.OPTIONS, *(part for name, text in texts.items() for part in (name, text))]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    return f"kernels-{target}-{digest}-{version}.bin"
