"""Warnings that point at the line of the program, such as its call of `fit`."""

from __future__ import annotations

import sys
import warnings

_LIBRARIES = ("keras", "tensorflow", "terngrad")


def warn(text: str) -> None:
    """Warns at the innermost line outside TernGrad, Keras and TensorFlow."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and _is_of_library(frame.f_globals.get("__name__", "")):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)


def _is_of_library(module: str) -> bool:
    return module.partition(".")[0] in _LIBRARIES
