"""Frozen dataclasses from untrusted JSON: the type of every value is checked.

The annotations of the fields say what is allowed: int, float, bool, str, another dataclass,
tuple[X, ...], or Mapping[X, Y].
"""

from __future__ import annotations

import collections.abc
import dataclasses
import typing
from typing import Any, TypeVar

_T = TypeVar("_T")
# JSON may write 1.0 as 1. A bool is not allowed as an int here, though it is one in Python.
_ALLOWED = {int: (int,), float: (int, float), bool: (bool,), str: (str,)}
# Errors of reading a text that another program wrote.
UNREADABLE = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


class FieldError(ValueError):
    """A field is unknown, missing or of the wrong type."""


def check(record: Any, name: str = "") -> None:
    """Raises FieldError unless every field of a dataclass has its declared type."""
    hints = typing.get_type_hints(type(record))
    for field in dataclasses.fields(record):
        _check(getattr(record, field.name), hints[field.name], f"{name}{field.name}")


def read(kind: type[_T], values: Any, name: str = "") -> _T:
    """Returns a dataclass from the values of its fields by name, with lists for tuples.

    Raises:
      FieldError: a field is unknown or of another type, or has neither value nor default.
    """
    label = name or kind.__name__.lower()
    _expect(values, (dict,), label, "an object")
    hints = typing.get_type_hints(kind)
    required = {f.name for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING}
    if unknown := sorted(values.keys() - hints.keys()):
        raise FieldError(f"{label} has an unknown field {unknown[0][:64]!r}")
    if missing := sorted(required - values.keys()):
        raise FieldError(f"{label} has no field {missing[0]!r}")
    prefix = f"{name}." if name else ""
    return kind(**{f: _read(value, hints[f], f"{prefix}{f}") for f, value in values.items()})


def _read(value: Any, hint: Any, name: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return read(hint, value, name)
    if typing.get_origin(hint) is tuple:
        _expect(value, (list,), name, "a list")
        element = typing.get_args(hint)[0]
        return tuple(_read(v, element, f"{name}[{i}]") for i, v in enumerate(value))
    _check(value, hint, name)
    return value


def _check(value: Any, hint: Any, name: str) -> None:
    if dataclasses.is_dataclass(hint):
        _expect(value, (hint,), name, hint.__name__)
        check(value, f"{name}.")
    elif typing.get_origin(hint) is tuple:
        _expect(value, (tuple,), name, "tuple")
        for i, element in enumerate(value):
            _check(element, typing.get_args(hint)[0], f"{name}[{i}]")
    elif typing.get_origin(hint) is collections.abc.Mapping:
        _expect(value, (dict,), name, "an object")
        key_hint, value_hint = typing.get_args(hint)
        for key, element in value.items():
            _check(key, key_hint, f"a key of {name}")
            _check(element, value_hint, f"{name}[{key[:64]!r}]")
    else:
        _expect(value, _ALLOWED[hint], name, hint.__name__)


def _expect(value: Any, kinds: tuple[type, ...], name: str, allowed: str) -> None:
    if type(value) not in kinds:
        raise FieldError(f"{name} is of type {type(value).__name__}; allowed is {allowed}")
