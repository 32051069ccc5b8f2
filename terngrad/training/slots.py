"""Optimizers by the names of their flags, and the slots that each keeps for every variable.

This module does not need TensorFlow: flags and plans are checked before it is loaded.
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
