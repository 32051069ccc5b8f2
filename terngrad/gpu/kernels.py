"""The GPU kernels' code for a card, from the cache or from NVRTC."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from terngrad.gpu import cache, nvrtc
from terngrad.ops import objects
from terngrad.ops.library import UnavailableError

SOURCE = "terngrad/cc/gpu/kernels.cu"


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
        return cache.cached(name, lambda: compiled(compiler, target, texts).code)
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
    return {name: content.decode() for name, content in sorted(objects.texts(SOURCE).items())}


def _digest(texts: Mapping[str, str], target: str, version: nvrtc.Version) -> str:
    """Returns a digest of all that decides the code."""
    parts = [target, *map(str, version), *nvrtc.OPTIONS]
    parts += [part for name, text in texts.items() for part in (name, text)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
