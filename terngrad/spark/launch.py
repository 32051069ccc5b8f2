"""The former name of `terngrad.spark.combinations`; the next version has only that one."""

from __future__ import annotations

import warnings
from typing import Any

from terngrad.spark import combinations


def __getattr__(name: str) -> Any:
    """Returns `launch` or `LaunchError`, with a warning."""
    if name not in ("launch", "LaunchError"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    message = f"{__name__} is now called {combinations.__name__}"
    warnings.warn(f"{message}; the next version has only that name", FutureWarning, stacklevel=2)
    return getattr(combinations, name)
