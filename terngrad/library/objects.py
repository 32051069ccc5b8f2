"""Serializes Python values without pickle, which would run code of another process."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import numpy as np

MAX_BYTES = 1 << 28  # of a value
_DEEPEST = 100  # levels of lists, tuples and dicts

_ALLOWED = (
    "None, bools, numbers, texts, bytes, NumPy arrays of numbers, and lists, tuples and dicts of "
    "these"
)


def pack(value: Any, what: str) -> bytes:
    """Returns a value as bytes.

    Args:
      value: None, bools, numbers, texts, bytes, NumPy arrays and scalars of numbers, and lists,
        tuples and dicts of these.
      what: names it in errors.

    Raises:
      TypeError: names the part that is something else.
      ValueError: it is nested too deeply, or has more than `MAX_BYTES`.
    """
    content = json.dumps(_plain(value, what, 0), separators=(",", ":")).encode()
    check_size(len(content), what)
    return content


def unpack(content: bytes) -> Any:
    """Returns the value of bytes that `pack` made.

    Raises:
      ValueError: they are not of such a value.
    """
    try:
        return _value(json.loads(content), 0)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"received bytes are no value: {error}") from None


def check_size(octets: int, what: str) -> None:
    """Raises ValueError if a value has more than `MAX_BYTES`, or less than none."""
    if not 0 <= octets <= MAX_BYTES:
        raise ValueError(f"{what} takes {octets:,} bytes; allowed are up to {MAX_BYTES:,}")


def _plain(value: Any, where: str, depth: int) -> Any:
    """Returns a value as JSON has it; lists and the like begin with the name of their type."""
    if depth > _DEEPEST:
        raise ValueError(f"{where}: more than {_DEEPEST} levels; allowed are up to {_DEEPEST}")
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (list, tuple):
        inner = [_plain(each, f"{where}[{i}]", depth + 1) for i, each in enumerate(value)]
        return [type(value).__name__, *inner]
    if type(value) is dict:
        inner = lambda each, key: _plain(each, f"{where}[{key!r}]", depth + 1)
        return ["dict", *([inner(key, key), inner(each, key)] for key, each in value.items())]
    if type(value) is bytes:
        return ["bytes", base64.b64encode(value).decode()]
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufc":
        content = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        return [kind, value.dtype.str, list(value.shape), content]
    kind = type(value).__name__
    if isinstance(value, (np.ndarray, np.generic)):
        kind += f" of {value.dtype.name}"
    raise TypeError(f"{where} is {kind}; allowed are {_ALLOWED}")


def _array(dtype: str, shape: list[int], content: str) -> np.ndarray:
    kind = np.dtype(dtype)
    if kind.kind not in "biufc":
        raise ValueError(f"an array of {kind}")
    return np.frombuffer(base64.b64decode(content), kind).reshape(shape).copy()


_BUILDERS: dict[str, Callable[..., Any]] = {
    "bytes": base64.b64decode,
    "array": _array,
    "scalar": lambda *array: _array(*array)[()],
}


def _value(plain: Any, depth: int) -> Any:
    """Returns the value that `_plain` has turned into this."""
    if not isinstance(plain, list):
        if isinstance(plain, dict):
            raise ValueError("a JSON object")
        return plain
    if depth > _DEEPEST or not plain:
        raise ValueError("a list without a type, or too many levels")
    kind, *parts = plain
    if kind in _BUILDERS:
        return _BUILDERS[kind](*parts)
    if kind == "dict":
        return {_value(key, depth + 1): _value(each, depth + 1) for key, each in parts}
    found = [_value(part, depth + 1) for part in parts]
    return {"list": list, "tuple": tuple}[kind](found)
