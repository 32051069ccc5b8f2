"""Optimizers by the names that flags give them, and what each keeps of every variable.

Nothing here needs TensorFlow: flags and plans are checked before it is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

SLOTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "momentum": ("momentum",),
        "adam": ("m", "v"),
        "gd": (),
        "rmsprop": ("mean_square", "momentum"),
    }
)
