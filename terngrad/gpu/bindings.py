"""The functions of cc/gpu/functions.cc, and the structures that they read."""

from __future__ import annotations

import ctypes
import functools

from terngrad.ops import library
from terngrad.ops.library import NodeKey, Parts, Planes, Update

_POINTER, _COUNT, _TEXT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p

VALUE_TYPES = {"float32": 0, "float16": 1, "bfloat16": 2}  # ValueType of cc/gpu/tables.h

# Those of cc/gpu/tables.h. Launches fill in offsets.


class Source(ctypes.Structure):
    """A variable's gradient and how to encode it."""

    _fields_ = (
        ("values", _POINTER),
        ("size", _COUNT),
        ("offset", _COUNT),
        ("first", _COUNT),
        ("parts", Parts),
        ("bounds", _POINTER),
        ("scales", _POINTER),
        ("variable", ctypes.c_uint32),
        ("type", ctypes.c_int32),
    )


class Target(ctypes.Structure):
    """Memory for a variable's mean gradient."""

    _fields_ = (
        ("values", _POINTER),
        ("size", _COUNT),
        ("offset", _COUNT),
        ("parts", Parts),
        ("scales", _POINTER),
    )


class Kept(ctypes.Structure):
    """A variable's values and memory for the rounding error."""

    _fields_ = (
        ("values", _POINTER),
        ("residuals", _POINTER),
        ("size", _COUNT),
        ("offset", _COUNT),
        ("parts", Parts),
        ("scales", _POINTER),
    )


class Trained(ctypes.Structure):
    """A variable that is trained."""

    _fields_ = (
        ("weights", _POINTER),
        ("slots", _POINTER * 2),
        ("averages", _POINTER),
        ("size", _COUNT),
        ("offset", _COUNT),
        ("parts", Parts),
        ("scales", _POINTER),
    )


class Corrected(ctypes.Structure):
    """A gradient, a codec's memory, and space for their sum."""

    _fields_ = (
        ("values", _POINTER),
        ("memory", _POINTER),
        ("sums", _POINTER),
        ("size", _COUNT),
        ("offset", _COUNT),
        ("type", ctypes.c_int32),
    )


class Gradient(ctypes.Structure):
    """A whole variable to measure: `Gradient` of cc/gpu/launch.h."""

    _fields_ = (
        ("values", _POINTER),
        ("size", _COUNT),
        ("parts", Parts),
        ("type", ctypes.c_int32),
    )


class UnitRule(ctypes.Structure):
    """The value of a sum of 1: scale * share / divisor."""

    _fields_ = (("share", ctypes.c_float), ("divisor", ctypes.c_float))


def _table(item: type[ctypes.Structure]) -> tuple:
    return ctypes.POINTER(item), _COUNT


_UNITS = ctypes.POINTER(UnitRule)
_PLACE = (_POINTER, _POINTER)  # scratch memory, and the stream
_SIGNATURES = {  # the result, then the arguments
    "terngrad_gpu_open": (_TEXT, _TEXT, ctypes.c_int, ctypes.POINTER(_POINTER)),
    "terngrad_gpu_close": (None, _POINTER),
    "terngrad_gpu_keep": (None, _POINTER, ctypes.c_int),
    "terngrad_gpu_capability": (ctypes.c_int, _POINTER),
    "terngrad_gpu_load": (_TEXT, _POINTER, _POINTER),
    "terngrad_gpu_upload": (_TEXT, _POINTER, _POINTER, _COUNT, _POINTER, _POINTER),
    "terngrad_gpu_stats_bytes": (_COUNT, *_table(Gradient)),
    "terngrad_gpu_stats": (
        *(_TEXT, _POINTER, *_table(Gradient)),
        *(_POINTER, _POINTER, _POINTER, *_PLACE),
    ),
    "terngrad_gpu_encode": (
        *(_TEXT, _POINTER, _TEXT, *_table(Source)),
        *(ctypes.POINTER(NodeKey), _COUNT, _POINTER, *_PLACE),
    ),
    "terngrad_gpu_sum": (
        *(_TEXT, _POINTER, *_table(Planes)),
        *(ctypes.c_int, _COUNT, _POINTER, *_PLACE),
    ),
    "terngrad_gpu_decode": (
        *(_TEXT, _POINTER, ctypes.POINTER(Planes), *_table(Target)),
        *(_UNITS, _COUNT, *_PLACE),
    ),
    "terngrad_gpu_subtract": (
        *(_TEXT, _POINTER, ctypes.POINTER(Planes), *_table(Kept)),
        *(_UNITS, _COUNT, *_PLACE),
    ),
    "terngrad_gpu_update": (
        *(_TEXT, _POINTER, ctypes.POINTER(Planes), *_table(Trained)),
        *(ctypes.POINTER(Update), _UNITS, _COUNT, *_PLACE),
    ),
    "terngrad_gpu_correct": (_TEXT, _POINTER, *_table(Corrected), _COUNT, *_PLACE),
}


@functools.cache
def load() -> ctypes.CDLL:
    """Returns the functions, which are part of the library for arrays.

    Raises:
      UnavailableError: see `library.load_arrays`.
    """
    return of(library.load_arrays())


def of(loaded: ctypes.CDLL) -> ctypes.CDLL:
    """Returns the functions of a library that has them: that for arrays, or that with the ops."""
    return library.declared(loaded, _SIGNATURES)


def scratch_bytes(items: ctypes.Array) -> int:
    """Returns the bytes of scratch memory on the GPU that the launch with a table takes."""
    if items._type_ is Gradient:
        return load().terngrad_gpu_stats_bytes(items, len(items))
    return ctypes.sizeof(items)
