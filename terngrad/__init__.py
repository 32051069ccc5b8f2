"""Ternary gradients: turns the local gradients of data-parallel nodes into shared updates.

docs/library.md tells how to train with it in your own program. TensorFlow is loaded when one
of the names below is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from terngrad import keras as keras
    from terngrad import numpy as numpy
    from terngrad.cluster.errors import MembershipError
    from terngrad.connect.certificates import Tls
    from terngrad.library.asynchronous import AsynchronousTraining
    from terngrad.library.group import Group
    from terngrad.library.joining import join
    from terngrad.library.local_steps import LocalSteps
    from terngrad.library.reducer import Reducer
    from terngrad.library.serving import Asynchronous
    from terngrad.training.runtime import configure

__version__ = "2.0.0"
__all__ = [
    "Asynchronous",
    "AsynchronousTraining",
    "Group",
    "LocalSteps",
    "MembershipError",
    "Reducer",
    "Tls",
    "__version__",
    "configure",
    "join",
]

_SUBMODULES = ("keras", "numpy")
_MODULES = {
    "Asynchronous": "terngrad.library.serving",
    "AsynchronousTraining": "terngrad.library.asynchronous",
    "Group": "terngrad.library.group",
    "LocalSteps": "terngrad.library.local_steps",
    "MembershipError": "terngrad.cluster.errors",
    "Reducer": "terngrad.library.reducer",
    "Tls": "terngrad.connect.certificates",
    "configure": "terngrad.training.runtime",
    "join": "terngrad.library.joining",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES and name not in _SUBMODULES:
        raise AttributeError(f"module 'terngrad' has no attribute {name!r}")
    try:
        if name in _SUBMODULES:
            return importlib.import_module(f"terngrad.{name}")
        return getattr(importlib.import_module(_MODULES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("tensorflow", "keras"):
            raise
        hint = (
            f"terngrad.{name} needs TensorFlow: pip install '.[cpu]', or '.[gpu]' for NVIDIA GPUs"
        )
        raise ModuleNotFoundError(hint, name=error.name) from None


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_SUBMODULES})
